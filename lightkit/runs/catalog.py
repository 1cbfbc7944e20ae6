"""Where runs live: making a new run folder, finding an old one."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.common.errors import UserError
from lightkit.common.suggest import nearest

if TYPE_CHECKING:
    from lightkit.config import Composed

CONFIG_FILE, RESULT_FILE, ENVIRONMENT_FILE = "config.yaml", "result.json", "environment.json"
SHOWN = 6
"""Names of runs that a message lists."""
_DATED = re.compile(r"/(?P<date>\d{4}-\d{2}-\d{2})/(?P<time>\d{2}-\d{2}-\d{2})-(?P<name>[^/]+)(?P<job>/[^/]+)?$")


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
        fix = f"lightkit resume {folder}" if has_checkpoints(folder) else "resume=auto, as it has saved nothing yet"
        raise UserError("the folder already holds a run", key=str(folder), fix=f"{fix}, or another folder")
    _create(folder)
    return folder


def hydra_folder(composed: Composed, kind: str, typed: Sequence[str] = ()) -> Path | None:
    """The absolute `hydra.run.dir` or `hydra.sweep.dir` that the user has set somewhere; None where nobody has.

    Args:
        composed: A composed configuration.
        kind: `run` or `sweep`.
        typed: The overrides; the configuration of an earlier run has no Hydra node, so that of a new one counts.

    Raises:
        UserError: It is empty, or refers to what only Hydra knows, and only while it runs something.
    """
    key, found = f"hydra.{kind}.dir", _set_by_user(composed, kind, typed)
    return None if found is None else _absolute(_resolved(found[0], kind, found[1]), key)


def is_dated(composed: Composed, kind: str, typed: Sequence[str] = ()) -> bool:
    """Whether the folder that the user has set is another one at another time; see `hydra_folder`."""
    found = _set_by_user(composed, kind, typed)
    return found is not None and "${now:" in found[1]


def _set_by_user(composed: Composed, kind: str, typed: Sequence[str]) -> tuple[Any, str] | None:
    """The whole configuration and the folder in it as it is written; None where nobody has set it."""
    from omegaconf import OmegaConf

    from lightkit.config.compose import compose_hydra

    whole: Any
    if composed.hydra_cfg is None:
        whole, sources = compose_hydra([text for text in typed if text.startswith("hydra.")])
    else:
        whole, sources = composed.hydra_cfg, composed.sources
    # Its text does not tell: what somebody sets may be what Hydra has by default.
    if sources.exact(("hydra", kind, "dir")) is None:
        return None
    whole = OmegaConf.create(OmegaConf.to_container(whole))
    whole.name = composed.cfg.name  # which is made up where the user gave none
    return whole, str(whole.hydra[kind]._get_node("dir")._value())


def _absolute(text: str, key: str) -> Path:
    if not text.strip():  # which would be the working directory: a shell variable that is not set
        raise UserError("a folder is missing", key=key, received=text, fix=f"{key}=FOLDER, or leave it out")
    from lightkit.config.project import project_root

    folder, root = Path(text).absolute(), project_root()
    if root is not None and root.is_relative_to(folder.resolve()):
        what = "the folder of a run cannot be that of the project, nor be around it"
        raise UserError(what, key=key, received=text, fix=f"{key}=FOLDER inside the project, or elsewhere")
    return folder


def _resolved(whole: Any, kind: str, text: str) -> str:
    """`text` with its interpolations worked out in the whole configuration."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not OmegaConf.has_resolver("now"):
        # As Hydra does when it starts an application: one time for everything that is composed.
        OmegaConf.register_new_resolver("now", lambda form: f"{datetime.now():{form}}", use_cache=True)
    try:
        return str(whole.hydra[kind].dir)
    except OmegaConfBaseException as error:
        what = f"cannot be worked out: {str(error).splitlines()[0]}"
        raise UserError(what, key=f"hydra.{kind}.dir", received=text, fix=f"hydra.{kind}.dir=FOLDER") from error


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
    """Every folder below `<root>/outputs` that holds a run, the newest last."""
    found = {path.parent for path in (root / "outputs").glob(f"**/{CONFIG_FILE}") if ".hydra" not in path.parts}
    return sorted(found, key=lambda folder: (started(folder), folder))


def dated(folder: Path) -> dict[str, str] | None:
    """What the path of a run says: `date`, `time`, `name`, and `job` (empty but in a sweep); None for any other."""
    found = _DATED.search(folder.as_posix())
    return found.groupdict(default="") if found else None


def started(folder: Path) -> datetime:
    """When a run was started, in local time.

    The name of its folder says so; where it does not, as in a sweep or in a folder of the user's choice, the run's own
    record does, and else the age of its files.
    """
    found = dated(folder)
    named = _time(f"{found['date']}T{found['time']}", "%Y-%m-%dT%H-%M-%S") if found else None
    if named is None or (found and found["job"]):
        # The jobs of a sweep start long after the sweep.
        named = _noted_time(folder) or named
    return named or datetime.fromtimestamp(max(_age(folder / name) for name in (RESULT_FILE, CONFIG_FILE)))


def _noted_time(folder: Path) -> datetime | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))["time"]
        found = _time(noted, "%Y-%m-%dT%H:%M:%S%z")
        return found.astimezone().replace(tzinfo=None) if found else None
    return None


def _time(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def run_name(folder: Path) -> str:
    """The name of a run, without the time: `digits_mlp`, for a job of a sweep `digits_mlp/seed=1`."""
    found = dated(folder)
    return f"{found['name']}{found['job']}" if found else folder.name


def has_checkpoints(folder: Path) -> bool:
    """Whether a folder holds a run that has saved something."""
    checkpoints = folder / "checkpoints"
    # A list whose files are gone counts too: that is no reason to start anew.
    return (checkpoints / "manifest.json").exists() or any(checkpoints.glob("step-*.pt"))


def unfinished_run(root: Path, config_text: str) -> Path | None:
    """The newest run below `outputs/` with this configuration that has saved something but not finished."""
    for folder in reversed(all_runs(root)):
        if has_checkpoints(folder) and status(folder) != "finished" and has_configuration(folder, config_text):
            return folder
    return None


def has_configuration(folder: Path, config_text: str) -> bool:
    """Whether a run has this configuration, apart from how it is resumed."""
    import yaml

    with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError, KeyError):
        there = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        wanted = yaml.safe_load(config_text)
        asked = (wanted.get("device") or {}).get("batch_size")
        return _comparable(there, asked) == _comparable(wanted, asked)
    return False


def _comparable(config: dict[str, Any], asked: str | None) -> dict[str, Any]:
    """A configuration without how it is resumed, nor what `device.batch_size` becomes when a run begins."""
    content = {key: value for key, value in (config or {}).items() if key != "resume"}
    if asked is None:
        return content
    data, trainer, device = (dict(content[group]) for group in ("data", "trainer", "device"))
    samples = data.pop("batch_size") * trainer.pop("accumulate")
    device.pop("batch_size", None)
    changed = {"data": data, "trainer": trainer, "device": device}
    return {**content, **changed, "samples": samples if asked == "auto" else None}


def status(folder: Path) -> str | None:
    """How a run ended, as its result file says; None where there is none that can be read."""
    try:
        return str(json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_run(text: str, root: Path) -> Path:
    """The folder of a run, from its path, its name, or `last` for the newest.

    Of several runs with the name that `lightkit runs` shows, the newest is meant.

    Raises:
        UserError: There is no such run, or several have folders of this name.
    """
    for folder in (Path(text), root / text, root / "outputs" / text):
        if (folder / CONFIG_FILE).is_file():
            return folder.resolve()
    newest_first = all_runs(root)[::-1]
    same_folder = [folder for folder in newest_first if folder.name == text]
    same_name = [folder for folder in newest_first if text == "last" or run_name(folder) == text]
    if len(same_folder) == 1 or same_name:
        return (same_folder if len(same_folder) == 1 else same_name)[0]
    raise UserError(
        "several runs have this name" if same_folder else f"no run here: a run's folder holds {CONFIG_FILE}",
        received=text,
        choices=_like(text, same_folder or newest_first, root),
        fix="`lightkit runs` lists the runs; `last` is the newest",
    )


def _like(text: str, folders: list[Path], root: Path) -> list[str]:
    """What the user may have meant, as one would type it: what resembles it, then the newest."""
    paths = [str(folder.relative_to(root)) for folder in folders]
    if "/" in text or all(folder.name == text for folder in folders):
        return [*dict.fromkeys([*nearest(text, paths), *paths[:SHOWN]])]
    names = [*dict.fromkeys(map(run_name, folders))]
    known = [*names, *(folder.name for folder in folders)]
    return [*dict.fromkeys([*nearest(text, known), *names[:SHOWN]])]
