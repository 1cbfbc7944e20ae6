"""What `lightkit ckpt` is given: paths and names of runs, their folders of checkpoints, their configurations."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import UNREADABLE
from lightkit.common.reading import UnreadableError, parse_mapping, refuse_blank
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run

if TYPE_CHECKING:
    from lightkit.checkpoint.delta import Delta
    from lightkit.checkpoint.weights import Weights

# Everything of `lightkit.checkpoint` and `lightkit.config` is imported inside the functions: it takes its time.

_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar")


def find_source(text: str) -> Path:
    """Return the file or folder that is meant: a path, or a run by its name.

    Raises:
        UserError: There is no such file or run.
    """
    path = Path(text)
    if path.is_file() or (path.is_dir() and not (path / run_files.CONFIG).is_file()):
        return path
    if path.suffix in _SUFFIXES:
        raise UserError("no such file", key=text, family="file")
    return find_run(text, project())


def checkpoint_folder(path: Path) -> Path | None:
    """Return the folder of checkpoints of a run or at a path; None where it is something else."""
    for folder in (path / run_files.CHECKPOINTS, path):
        if (folder / run_files.MANIFEST).is_file():
            return folder
    return None


def run_of(weights: Weights) -> Path | None:
    """Return the folder of the run that wrote a checkpoint; None where it lies elsewhere, or is none."""
    run = weights.path.resolve().parent.parent
    return run if weights.kind == "lightkit checkpoint" and (run / run_files.CONFIG).is_file() else None


def read_cfg(run: Path, device: str = "cpu", *, trust: bool = False) -> Any:
    """Read the configuration of a run, on another device.

    Args:
        run: Folder of the run.
        device: Name of the device.
        trust: The user answers for the run, which may be from elsewhere.
    """
    return read_run(run, [f"device.name={device}"], known=trust, fix="--trust if you know who made it").cfg


def read_adapter_cfg(path: Path, found: Delta, base: str | None = None, *, trust: bool = False) -> Any:
    """Read the configuration in an adapter file, with the adapter on top of its base.

    Args:
        path: The adapter file.
        found: What is in it.
        base: Its base weights; None looks where they were.
        trust: The user answers for the files: the base may be a pickle that runs code, and parts of the project may be
            built for an adapter file from elsewhere. What the file says of that counts for nothing.

    Raises:
        UserError: There is no usable configuration in it, or the base is not where it was.
    """
    import yaml

    from lightkit.config import load_run
    from lightkit.config.project import located
    from lightkit.config.provenance import is_ours

    known = trust or is_ours(path.resolve().parent, found.config)
    try:
        refuse_blank(found.config)
        tree = parse_mapping(found.config)
        weights = tree.setdefault("finetune", {}).setdefault("weights", {})
    except (UnreadableError, AttributeError) as error:
        what = "there is no configuration in the adapter file"
        raise UserError(what, key=str(path), exit_code=UNREADABLE) from error
    below = base or weights.get("path")
    if below is not None and not located(below).exists():
        what = "there is no such file" if base else "the base of the adapter is not where it was"
        raise UserError(what, key="--base", received=below, fix="--base FILE")
    below = below if below is None else str(located(below).resolve())
    weights |= {"adapter": str(path.resolve()), "path": below, "trust": trust}
    tree["device"] = {**(tree.get("device") or {}), "name": "cpu"}
    with TemporaryDirectory(prefix="lightkit-") as folder:
        (Path(folder) / run_files.CONFIG).write_text(yaml.safe_dump(tree), encoding="utf-8")
        return load_run(Path(folder), known=known, fix=f"--trust if you know who made {path}").cfg


def read_protocol(typed: str | None, kind: str) -> int:
    """Return the protocol of pickle to write; what is typed must be one, and for a file that holds a pickle.

    Raises:
        UserError: It is none, or the file has none of its own choice.
    """
    from lightkit.checkpoint.export import PROTOCOL

    if typed is None:
        return PROTOCOL
    if kind not in ("weights", "model"):
        what, fix = f"{kind} has no protocol of pickle to choose", "--to weights or --to model, or leave it out"
        raise UserError(what, key="--pickle-protocol", received=typed, fix=fix)
    if typed not in ("2", "3", "4", "5"):
        raise UserError("no such protocol", key="--pickle-protocol", received=typed, choices=("2", "3", "4", "5"))
    return int(typed)
