"""Earlier runs: finding them, what they came to, and which one a user means."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import UnreadableError, opened, parse_mapping, parse_object
from lightkit.common.suggest import nearest
from lightkit.runs.reading import read_config, read_facts, read_result, run_folders

_NAMING_RUNS = ("finetune.weights.path", "finetune.distill.teacher")
"""Keys that take the folder of a run, and on the command line its name."""
_SHOWN = 6
"""Names of runs that a message lists."""
LAST_SECOND = 2.0**37
"""What a time in a file system may say at most: the year 6325."""
_LONGEST_HEAD = 1 << 20
"""Bytes of the first line of a sweep's journal that are looked at."""
_DATED = re.compile(r"/(?P<date>\d{4}-\d{2}-\d{2})/(?P<time>\d{2}-\d{2}-\d{2})-(?P<name>[^/]+)(?P<job>/[^/]+)?$")

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", re.ASCII)


@dataclass(frozen=True)
class DatedPath:
    """What the path of a run says that has a folder of lightkit's choice."""

    date: str
    """Day on which the run began, such as `2026-01-31`; of a job in a sweep, the day of the sweep."""
    time: str
    """Time of day, such as `12-00-00`."""
    name: str
    """Name of the run or of the sweep."""
    job: str
    """`/` and the name of the job in a sweep; empty for a single run."""


def project() -> Path:
    """Return the folder whose `outputs/` is meant: the user's project, or the working directory outside of one."""
    from lightkit.config.project import project_root

    return project_root() or Path.cwd()


def no_project_note() -> str:
    """Say how the working directory becomes a project, which it is not yet; empty inside of a project or a run."""
    from lightkit.config.project import is_run, project_root

    here = Path.cwd()
    if project_root() is not None or any(map(is_run, (here, *here.parents))):  # no folder of a run becomes one
        return ""
    return "this folder is no project, as it has neither conf/ nor experiments/: `mkdir conf` makes it one"


def all_runs(root: Path) -> list[Path]:
    """List every folder below `<root>/outputs` that holds a run, the newest last."""
    return runs_below(root / run_files.OUTPUTS)


def runs_below(folder: Path) -> list[Path]:
    """List every folder below another that holds a run, such as the jobs of a sweep; the newest last.

    The members of a run that trains several models belong to it, and are not listed.
    """
    return sorted(run_folders(folder), key=lambda run: (started(run), run))


def status(folder: Path) -> str | None:
    """Return how a run ended, as its result file says; None where there is none that can be read."""
    return read_result(folder).get("status") or None


def dated(folder: Path) -> DatedPath | None:
    """Read date, time and name from the path of a run; None for a folder of the user's choice."""
    found = _DATED.search(folder.as_posix())
    return DatedPath(**found.groupdict(default="")) if found else None


def started(folder: Path, noted: str | None = None) -> datetime:
    """Return when a run was started, in local time.

    The name of its folder says so; where it does not, as in a sweep or in a folder of the user's choice, the run's own
    record does, and else the age of its files.

    Args:
        folder: The run's folder.
        noted: What its record says, where that is known.
    """
    found = dated(folder)
    named = _of_path(found) if found and not found.job else None  # the jobs of a sweep start long after it
    if named is None:
        text = read_facts(folder).get("time") if noted is None else noted
        named = _time(text) or (_of_path(found) if found else None)
    if named is not None:
        return named
    ages = [_planned(folder)]
    for name in (run_files.RESULT, run_files.CONFIG):
        with contextlib.suppress(OSError):
            ages.append((folder / name).stat().st_mtime)
    return datetime.fromtimestamp(min(max(ages), LAST_SECOND))


def _planned(folder: Path) -> float:
    """Return the second at which a sweep was planned; the age of a journal that does not say so, 0 without one."""
    path, second = folder / run_files.SWEEP_JOURNAL, 0.0
    with contextlib.suppress(OSError, UnreadableError):
        second = path.lstat().st_mtime
        with opened(path) as file:
            noted = parse_object(file.readline(_LONGEST_HEAD)).get("time")
        if isinstance(noted, int | float) and 0 < noted < LAST_SECOND:
            return float(noted)
    return second


def _of_path(found: DatedPath) -> datetime | None:
    return _time(f"{found.date}T{found.time}", "%Y-%m-%dT%H-%M-%S")


def _time(text: Any, form: str = "%Y-%m-%dT%H:%M:%S%z") -> datetime | None:
    """Read a time, in local time; None where it is none."""
    try:
        is_ours = isinstance(text, str) and _STAMP.fullmatch(text)  # `strptime` takes ten times as long
        found = datetime.fromisoformat(f"{text[:-2]}:{text[-2:]}") if is_ours else datetime.strptime(text, form)
        return found.astimezone().replace(tzinfo=None)
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def run_name(folder: Path) -> str:
    """Return the name of a run, without the time: `digits_mlp`, for a job of a sweep `digits_mlp/seed=1`.

    That of a fold is the name of its cross-validation.
    """
    folder = folder.parent.parent if is_fold(folder) else folder
    found = dated(folder)
    return f"{found.name}{found.job}" if found else folder.name


def has_checkpoints(folder: Path) -> bool:
    """Tell whether a folder holds a run that has saved something."""
    checkpoints = folder / run_files.CHECKPOINTS
    # A list whose files are gone counts too: that is no reason to start anew.
    return (checkpoints / run_files.MANIFEST).exists() or any(checkpoints.glob(run_files.CHECKPOINT_PATTERN))


def is_whole(folder: Path) -> bool:
    """Tell whether a folder is that of a run or of a sweep."""
    return any((folder / name).is_file() for name in (run_files.CONFIG, run_files.SWEEP_JOURNAL))


def has_members(folder: Path) -> bool:
    """Tell whether a folder holds a run of several models, the first of which has begun."""
    return count_members(folder) > 0


def is_fold(folder: Path) -> bool:
    """Tell whether a folder is that of a model of a cross-validation, whose data are split in a way of its own."""
    return folder.parts[-2:-1] == (run_files.MEMBERS,) and folder.name.startswith(run_files.FOLD)


def folds_of(folder: Path) -> list[Path]:
    """Return the runs of the folds of a cross-validation; none of other runs."""
    found = sorted((folder / run_files.MEMBERS).glob(f"{run_files.FOLD}*/{run_files.CONFIG}"))
    return [path.parent for path in found if path.parent.name != run_files.REFIT]


def count_members(folder: Path) -> int:
    """Count the models that have begun of a run that trains several; 0 for a run of one."""
    return sum(1 for _ in (folder / run_files.MEMBERS).glob(f"*/{run_files.CONFIG}"))


def find_unfinished(root: Path, config_text: str, dated: Sequence[str] = ()) -> Path | None:
    """Find the newest run below `outputs/` with this configuration that has saved something but not finished.

    Args:
        root: The project.
        config_text: The configuration as YAML.
        dated: Keys whose values do not count, as they tell the time.
    """
    for folder in reversed(all_runs(root)):
        begun = has_checkpoints(folder) or has_members(folder)
        if begun and status(folder) != "finished" and has_configuration(folder, config_text, dated):
            return folder
    return None


def has_configuration(folder: Path, config_text: str, dated: Sequence[str] = ()) -> bool:
    """Tell whether a run has this configuration.

    How it is resumed, where it pauses, times in it, and what was looked for when it began do not count.
    """
    with contextlib.suppress(UnreadableError, KeyError, TypeError, AttributeError, ValueError):
        there, wanted = parse_mapping(read_config(folder)), parse_mapping(config_text)
        for tree in (there, wanted):
            for key in dated:
                _drop(tree, key)
        asked = (wanted.get("trainer") or {}).get("find_batch_size")
        if (wanted.get("trainer") or {}).get("find_lr"):
            for tree in (there, wanted):
                _drop(tree, "trainer.find_lr")
                _drop(tree, "optim.lr")
        return _comparable(there, asked) == _comparable(wanted, asked)
    return False


def _drop(tree: Any, key: str) -> None:
    """Put nothing where a key leads in plain values, if it leads anywhere."""
    from lightkit.config.origins import parts_of

    *above, last = parts_of(key)
    with contextlib.suppress(KeyError, IndexError, TypeError):
        for part in above:
            tree = tree[part]
        tree[last] = None


def _comparable(config: dict[str, Any], asked: str | None) -> dict[str, Any]:
    """Drop how a run is resumed, what follows its end, where it pauses, and what `trainer.find_batch_size` becomes."""
    content = {key: value for key, value in (config or {}).items() if key not in ("resume", "on_end")}
    if isinstance(content.get("trainer"), dict):
        content["trainer"] = {key: value for key, value in content["trainer"].items() if key != "stop_at"}
    if asked is None:
        return content
    data, trainer = (dict(content[group]) for group in ("data", "trainer"))
    samples = data.pop("batch_size") * trainer.pop("accumulate")
    trainer.pop("find_batch_size", None)
    return {**content, "data": data, "trainer": trainer, "samples": samples if asked == "auto" else None}


def places_of(text: str, root: Path) -> tuple[Path, ...]:
    """List the folders that a typed path may mean: from here, from the project, and from its `outputs/`."""
    return (Path(text), root / text, root / run_files.OUTPUTS / text)


def runs_of(text: str, root: Path, listed: Callable[[Path], Iterable[Path]] = runs_below) -> list[Path]:
    """List the runs below the folder that a typed path means; none where it is no folder of runs.

    Args:
        text: What was typed.
        root: The project.
        listed: Lists those below a folder; the usual one has the newest last.
    """
    for place in places_of(text, root):
        if place.is_dir() and (below := [*listed(place.resolve())]):
            return [] if (place / run_files.CONFIG).is_file() else below
    return []


def path_from(base: Path, path: Path) -> str:
    """Return a path as one would type it in the folder `base`: relative where it lies below, else absolute."""
    return str(path.relative_to(base) if path.is_relative_to(base) else path)


def noted(fix: str) -> str:
    """Return what to do, and where no project was found that, too."""
    return "; ".join(filter(None, [fix, no_project_note()]))


def no_runs(root: Path) -> UserError:
    """Make the error of a project without runs."""
    what = f"no run here: {root / run_files.OUTPUTS} has none yet"
    return UserError(what, fix=noted("`lightkit train` makes one"), family="no-such-run")


def find_run(text: str, root: Path) -> Path:
    """Find the folder of a run by its path, its name, or `last` for the newest.

    Of several runs with the name that `lightkit runs` shows, the newest is meant.

    Raises:
        UserError: There is no such run, or several have folders of this name.
    """
    for folder in places_of(text, root):
        # Each checkpoint holds the configuration as well: a run whose file is lost is still one.
        if (folder / run_files.CONFIG).is_file() or has_checkpoints(folder):
            return folder.resolve()
    newest_first = all_runs(root)[::-1]
    same_folder = [folder for folder in newest_first if folder.name == text]
    if len(same_folder) == 1:
        return same_folder[0]
    same_name = [folder for folder in newest_first if text == "last" or run_name(folder) == text]
    if same_name:
        return same_name[0]
    if text == "last":
        raise no_runs(root)
    # What the user may have meant, as one would type it: what resembles it, then the newest.
    likely = same_folder or newest_first
    shown = [str(folder.relative_to(root)) for folder in likely]
    known = shown
    if "/" not in text and not same_folder:
        shown = [*dict.fromkeys(map(run_name, likely))]
        known = [*shown, *(folder.name for folder in likely)]
    fix = "`lightkit runs` lists the runs; `last` is the newest"
    raise UserError(
        "several runs have this name" if same_folder else f"no run here: a run's folder holds {run_files.CONFIG}",
        received=text,
        choices=dict.fromkeys([*nearest(text, known), *shown[:_SHOWN]]),
        fix=fix if same_folder else noted(fix),
        family="no-such-run",
    )


def with_run_folders(overrides: Sequence[str], root: Path) -> list[str]:
    """Put the folder of a run where the command line names a run to start from: `finetune.weights.path=base`.

    What is a file or a folder stays, and so does a name that no run has.

    Args:
        overrides: As typed.
        root: The project.
    """
    return [_with_run_folder(text, root) for text in overrides]


def _with_run_folder(text: str, root: Path) -> str:
    key, _, name = text.partition("=")
    if key.lstrip("+") not in _NAMING_RUNS or not re.fullmatch(r"[\w.+-]+", name) or name == "null":
        return text
    if any((place / name).exists() for place in (Path(), root, root / run_files.OUTPUTS)):
        return text
    with contextlib.suppress(UserError):
        place = path_from(root, find_run(name, root))
        return f"{key}={place}" if re.fullmatch(r"[\w./+-]+", place) else f"{key}='{place}'"
    return text
