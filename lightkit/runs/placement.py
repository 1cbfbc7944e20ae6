"""Where a new run goes: its folder, by name and time or as the user asks, made so that no other run is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.names import name_problem, same_name
from lightkit.common.text import slug
from lightkit.runs.catalog import has_checkpoints, has_members

if TYPE_CHECKING:
    from lightkit.config import Composed


def new_run_folder(root: Path, name: str, *, kind: str = run_files.RUNS) -> Path:
    """Create `<root>/outputs/<kind>/<date>/<time>-<name>`, with a number appended where it is taken.

    Args:
        root: The project.
        name: Name of the run or of the sweep.
        kind: `runs` or `sweeps`.

    Raises:
        UserError: The folder cannot be created.
    """
    now = datetime.now()
    base = root / run_files.OUTPUTS / kind / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-{slug(name)}"
    for suffix in ("", *(f"-{count}" for count in range(2, 1000))):
        folder = base.with_name(base.name + suffix)
        if _create(folder):
            return folder
    raise UserError("too many runs with this name in one second", key=str(base), family="folder-in-use")


def chosen_run_folder(folder: Path) -> Path:
    """Create a folder the user named; an existing one must not hold a run.

    Raises:
        UserError: The folder holds a run or cannot be created.
    """
    check_free(folder)
    _create(folder)
    return folder


def check_free(folder: Path) -> None:
    """Refuse a folder that holds a run.

    Raises:
        UserError: It does.
    """
    if (folder / run_files.CONFIG).exists():
        fix = (
            f"lightkit resume {folder}"
            if has_checkpoints(folder) or has_members(folder)
            else "resume=auto, as it has saved nothing yet"
        )
        raise UserError(
            "the folder already holds a run", key=str(folder), fix=f"{fix}, or another folder", family="folder-in-use"
        )


def _create(folder: Path) -> bool:
    """Make a folder and its parents; return False when it is there already."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if folder.is_dir():
            return False
        raise UserError("not a folder", key=str(folder), family="cannot-write") from None
    except OSError as error:
        key = "hydra.sweep.dir" if folder.parent.parent.name == run_files.SWEEPS else "hydra.run.dir"
        what, fix = f"cannot create the run folder: {error.strerror}", f"{key}=FOLDER writes elsewhere"
        raise UserError(what, key=str(folder), fix=fix, family="cannot-write") from error
    return True


def discard_if_empty(folder: Path, root: Path) -> None:
    """Remove a folder, and empty folders above it up to `root`, when a run ended before it wrote anything."""
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def hydra_folder(composed: Composed, kind: str, typed: Sequence[str] = ()) -> Path | None:
    """Return the absolute `hydra.run.dir` or `hydra.sweep.dir` that the user has set somewhere; None where nobody has.

    Args:
        composed: A composed configuration.
        kind: `run` or `sweep`.
        typed: The overrides; the configuration of an earlier run has no Hydra node, so that of a new one counts.

    Raises:
        UserError: It is empty, or refers to what only Hydra knows, and only while it runs something.
    """
    found = _set_by_user(composed, kind, typed)
    if found is None:
        return None
    from lightkit.config.project import project_root

    whole, written = found
    key = f"hydra.{kind}.dir"
    text, root = str(_worked_out(whole, key, received=written, fix=f"{key}=FOLDER")), project_root()
    if not text.strip():  # which would be the working directory: a shell variable that is not set
        raise UserError(
            "a folder is missing", key=key, received=text, fix=f"{key}=FOLDER, or leave it out", family="file"
        )
    folder = Path(text).absolute()
    if root is not None and root.is_relative_to(folder.resolve()):
        what = "the folder of a run cannot be that of the project, nor be around it"
        raise UserError(
            what, key=key, received=text, fix=f"{key}=FOLDER inside the project, or elsewhere", family="file"
        )
    return folder


def _worked_out(whole: Any, key: str, *, fix: str, received: str | None = None) -> Any:
    """Return a value of Hydra's own settings, with what it refers to.

    Raises:
        UserError: That is not known here.
    """
    from omegaconf.errors import OmegaConfBaseException

    from lightkit.config.loader import select_value

    try:
        return select_value(whole, key)
    except (OmegaConfBaseException, RecursionError) as error:
        what = f"cannot be worked out: {str(error).splitlines()[0]}"
        raise UserError(what, key=key, received=received, fix=fix, family="file") from error


def has_dated_folder(composed: Composed, kind: str, typed: Sequence[str] = ()) -> bool:
    """Tell whether the folder that the user has set is another one at another time; see `hydra_folder`."""
    found = _set_by_user(composed, kind, typed)
    return found is not None and "${now:" in found[1]


def job_names(jobs: Sequence[Composed], typed: Sequence[str] = ()) -> list[str]:
    """Name the folder of each job below that of its sweep: as `hydra.sweep.subdir` says, or by what tells it apart.

    Args:
        jobs: All jobs of the sweep.
        typed: The overrides; see `hydra_folder`.

    Raises:
        UserError: `hydra.sweep.subdir` gives two jobs one folder, or one that is not below that of the sweep.
    """
    if any(job.replicate for job in jobs):
        wholes = [replace(job, overrides=job.overrides[: -len(job.replicate)], replicate=()) for job in jobs]
        once = {tuple(job.overrides): job for job in wholes}
        named = dict(zip(once, job_names([*once.values()], typed)))
        return [f"{named[tuple(own.overrides)]},{slug(','.join(job.replicate))}" for own, job in zip(wholes, jobs)]
    found = [_set_by_user(job, "sweep", typed, "subdir", number) for number, job in enumerate(jobs)]
    if None not in found:
        return _own_names([whole for whole, _ in filter(None, found)])
    varied = {text for job in jobs for text in job.overrides if any(text not in other.overrides for other in jobs)}
    names, taken = list[str](), {*map(same_name, run_files.SWEEP_OWN)}
    for job in jobs:
        base = slug(",".join(text for text in job.overrides if text in varied))
        counted = (base, *(f"{base}-{count}" for count in range(2, len(jobs) + 2)))
        names.append(next(name for name in counted if same_name(name) not in taken))
        taken.add(same_name(names[-1]))
    return names


def _own_names(wholes: Sequence[Any]) -> list[str]:
    """Work out `hydra.sweep.subdir` of every job, and look whether the jobs get folders of their own."""
    key, taken = "hydra.sweep.subdir", dict[Path, Path]()
    for whole in wholes:
        name = Path(str(_worked_out(whole, key, fix=f"{key}=job${{hydra:job.num}}") or ""))
        if name.is_absolute() or not name.parts or ".." in name.parts:
            what = "the folder of a job is below that of the sweep"
            fix = f"{key}=job${{hydra:job.num}}, and hydra.sweep.dir=FOLDER for the sweep"
            raise UserError(what, key=key, received=str(name), fix=fix, family="file")
        wrong = next((part for part in name.parts if name_problem(part)), None)
        if wrong is not None:
            fix = "hydra.job.config.override_dirname.exclude_keys=[KEY,…], or ${hydra:job.num}"
            raise UserError(str(name_problem(wrong)), key=key, received=wrong, fix=fix, family="file")
        if same_name(name.parts[0]) in map(same_name, run_files.SWEEP_OWN):
            what = "this name belongs to a file or folder of the sweep itself"
            raise UserError(what, key=key, received=str(name), fix=f"{key}=job${{hydra:job.num}}", family="file")
        other = next(
            (other for other in taken if name == other or name in other.parents or other in name.parents), None
        )
        if other is not None:
            what, fix = "a job would write into the folder of another one", "${hydra:job.num} tells them apart"
            raise UserError(what, key=key, received=str(name), fix=fix, family="folder-in-use")
        taken[name] = name
    return [str(name) for name in taken]


def _set_by_user(
    composed: Composed, kind: str, typed: Sequence[str], name: str = "dir", number: int | None = None
) -> tuple[Any, str] | None:
    """Return the whole configuration and the folder in it as it is written; None where nobody has set it."""
    from copy import deepcopy

    from omegaconf import OmegaConf, open_dict, read_write

    from lightkit.config.compose import compose_hydra

    whole: Any
    if composed.hydra_cfg is None:  # the folder may be named after values, which are those of the run
        new, sources = compose_hydra([text for text in typed if text.startswith("hydra.")])
        values: Any = OmegaConf.to_container(composed.cfg, resolve=False)
        whole = OmegaConf.create({**values, "hydra": new.hydra})
    else:
        whole, sources = composed.hydra_cfg, composed.sources
    # Its text does not tell: what somebody sets may be what Hydra has by default.
    if sources.exact(("hydra", kind, name)) is None:
        return None
    whole = deepcopy(whole)
    with open_dict(whole), read_write(whole.hydra):
        whole.name = composed.cfg.name  # which is made up where the user gave none
        if composed.hydra_cfg is None and number is not None:
            whole.hydra.job.num, whole.hydra.job.id = number, str(number)
            whole.hydra.job.override_dirname = ",".join(sorted(composed.overrides))
    return whole, str(whole.hydra[kind]._get_node(name)._value())
