"""Where runs live: making a new run folder, finding an old one."""

from __future__ import annotations

import contextlib
import json
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.common.errors import UserError

if TYPE_CHECKING:
    from lightkit.config import Composed

CONFIG_FILE = "config.yaml"


def project() -> Path:
    """The folder whose `outputs/` is meant: the user's project, or the working directory where there is none."""
    from lightkit.config.project import project_root

    return project_root() or Path.cwd()


def new_run_folder(root: Path, name: str, *, kind: str = "runs") -> Path:
    """Create `<root>/outputs/<kind>/<date>/<time>-<name>`, with a number appended where it is taken.

    Raises:
        UserError: The folder cannot be created.
    """
    now = datetime.now()
    base = root / "outputs" / kind / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-{slug(name)}"
    for suffix in ("", *(f"-{count}" for count in range(2, 1000))):
        folder = base.with_name(base.name + suffix)
        if _create(folder):
            return folder
    raise UserError("too many runs with this name in one second", key=str(base))


def chosen_run_folder(folder: Path) -> Path:
    """Create a folder the user named; an existing one must not hold a run.

    Raises:
        UserError: The folder holds a run or cannot be created.
    """
    if (folder / CONFIG_FILE).exists():
        raise UserError(
            "the folder already holds a run", key=str(folder), fix=f"lightkit resume {folder}, or another folder"
        )
    _create(folder)
    return folder


def hydra_folder(composed: Composed, kind: str, default: str) -> Path | None:
    """The absolute `hydra.run.dir` or `hydra.sweep.dir`; None where it is what Hydra has by default.

    Args:
        composed: A composed configuration.
        kind: `run` or `sweep`.
        default: What Hydra's default begins with.
    """
    from omegaconf import OmegaConf

    if composed.hydra_cfg is None:
        return None
    node = composed.hydra_cfg.hydra[kind]
    text = str(OmegaConf.to_container(node, resolve=False)["dir"])  # type: ignore[call-overload,index]
    return None if text.startswith(f"{default}${{now:") else Path(str(node.dir)).absolute()


def _create(folder: Path) -> bool:
    """Make `folder` and its parents; False when it is there already."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if folder.is_dir():
            return False
        raise UserError("not a folder", key=str(folder)) from None
    except OSError as error:
        raise _unwritable(folder, error) from error
    return True


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot create the run folder: {error.strerror}",
        key=str(folder),
        fix="hydra.run.dir=FOLDER writes elsewhere",
    )


def discard_if_empty(folder: Path, root: Path) -> None:
    """Remove `folder`, and empty folders above it up to `root`, when a run ended before it wrote anything."""
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def slug(text: str) -> str:
    """`text` as part of a file name: letters, digits, `.`, `=`, `,`, `+`, `-`, `_`; at most 120 characters."""
    return re.sub(r"[^\w.=,+-]+", "-", text).strip("-.")[:120] or "run"


def all_runs(root: Path) -> list[Path]:
    """Every folder below `<root>/outputs` that holds a run, oldest first by the date and time in its path."""
    found = {path.parent for path in (root / "outputs").glob(f"**/{CONFIG_FILE}") if ".hydra" not in path.parts}
    return sorted(found, key=lambda folder: _started(folder, root))


def _started(folder: Path, root: Path) -> tuple[str, str]:
    # runs/<date>/<time>-<name> and sweeps/<date>/<time>-<name>/<job> sort together by date and time.
    parts = folder.relative_to(root / "outputs").parts
    return ("/".join(parts[1:3]), "/".join(parts))


def has_checkpoints(folder: Path) -> bool:
    """Whether a folder holds a run that has saved something."""
    return any((folder / "checkpoints").glob("step-*.pt"))


def unfinished_run(root: Path, config_text: str) -> Path | None:
    """The newest run below `outputs/` with this configuration that has saved something but not finished."""
    import yaml

    wanted = _without_resume(yaml.safe_load(config_text))
    for folder in reversed(all_runs(root)):
        if not has_checkpoints(folder) or _status(folder) == "finished":
            continue
        with contextlib.suppress(OSError, yaml.YAMLError):
            if _without_resume(yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))) == wanted:
                return folder
    return None


def _without_resume(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (config or {}).items() if key != "resume"}


def _status(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "result.json").read_text(encoding="utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_run(text: str, root: Path) -> Path:
    """The folder of a run, from its path, its name in outputs/, or `last` for the newest.

    Raises:
        UserError: There is no such run.
    """
    for folder in (Path(text), root / text, root / "outputs" / text):
        if (folder / CONFIG_FILE).is_file():
            return folder.resolve()
    runs = all_runs(root)
    if text == "last" and runs:
        return runs[-1]
    named = [folder for folder in runs if folder.name == text]
    if len(named) == 1:
        return named[0]
    shown = [
        str(folder.relative_to(root)) if named or "/" in text else folder.name for folder in reversed(named or runs)
    ]
    raise UserError(
        "several runs have this name" if named else f"no run here: a run's folder holds {CONFIG_FILE}",
        received=text,
        choices=dict.fromkeys(shown),
        fix="`lightkit runs` lists the runs; `last` is the newest",
    )
