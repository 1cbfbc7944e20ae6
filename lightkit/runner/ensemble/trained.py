"""Members of an ensemble that an earlier part of its run has trained: whether what they left is whole and fits."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.checkpoint.reading import DamagedError, check_bytes
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import from_yaml, to_plain, with_values
from lightkit.config.schema.learning import MemberConfig
from lightkit.ensemble.methods.base import RunMember
from lightkit.ensemble.oof import MemberPredictions
from lightkit.processes.files import put_in_place
from lightkit.runs.catalog import has_checkpoints
from lightkit.runs.folder import RunFolder
from lightkit.runs.lock import lock_holder
from lightkit.runs.reading import read_config, read_ensemble_plan, read_result

_SET_ASIDE = f"{run_files.CHECKPOINTS}.damaged"
_LENGTHS = ("trainer.epochs", "trainer.steps")
_WAIT_SECONDS, _POLL_SECONDS = 60.0, 0.1


def member_config(cfg: DictConfig, member: RunMember) -> DictConfig:
    """Return the configuration of a member.

    Args:
        cfg: That of the run.
        member: The member.

    Raises:
        UserError: Its data differ from those of the others.
    """
    for key, value in member.values.items():
        if (key == "data" or key.startswith("data.")) and "cv.folds" not in member.values:
            raise UserError(
                "the members of a run learn from the same data", key=key, received=value, family="contradiction"
            )
    return with_values(cfg, member.values)


def find_trained(cfg: DictConfig, place: RunFolder, member: RunMember, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the result of a member that is trained; empty where it is to be trained, or trained on.

    Checkpoints that cannot be gone on from are set aside, so that the member is trained anew.

    Args:
        cfg: The configuration of the run.
        place: Its folder.
        member: The member.
        tell: Called with a line where something of the member is damaged, or it is to be trained longer.

    Raises:
        UserError: It was trained as another member, or other members have learnt from what it would no longer be.
    """
    folder = place.member(member.name).path
    _wait_for_writer(folder)
    result = read_result(folder)
    ended = result.get("status") == "finished"
    broken = _broken_checkpoint(folder, cfg.metrics.mode, ended=ended)
    if broken is not None and (folder / run_files.CHECKPOINTS).exists():
        shutil.rmtree(folder / _SET_ASIDE, ignore_errors=True)
        put_in_place(folder / run_files.CHECKPOINTS, folder / _SET_ASIDE)
    problem = broken or (_broken_record(folder, member) if ended else None)
    if problem is not None:
        tell(f"member {member.name} is damaged, and is made whole again alone: {problem}")
    return result if ended and problem is None and _as_trained(cfg, place, member, tell) else {}


def _wait_for_writer(folder: Path) -> None:
    """Wait for a process that trained the member until the run was killed: it still saves."""
    end = time.monotonic() + _WAIT_SECONDS
    while lock_holder(folder) is not None and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def _broken_checkpoint(folder: Path, mode: str, *, ended: bool) -> str | None:
    """Say which checkpoint is damaged that is needed: the best one, and the newest one or of an unfinished run any."""
    store, problems = CheckpointStore(folder / run_files.CHECKPOINTS, mode=mode), dict[str, str]()
    entries = store.entries()
    for entry in entries:
        try:
            check_bytes(store.folder / entry.file, entry)
        except DamagedError as error:
            problems[entry.file] = f"{entry.file}: {error}"
    if not entries:
        return "it has no checkpoint" if ended or has_checkpoints(folder) else None
    if len(problems) == len(entries):
        return problems[entries[-1].file]
    best, newest = store.best(), store.newest()
    needed = [path.name for path in (best, newest if ended else None) if path is not None]
    return next((problems[name] for name in needed if name in problems), None)


def _broken_record(folder: Path, member: RunMember) -> str | None:
    """Say what else of a finished member is missing or damaged."""
    if not _saved_config(folder):
        return f"{run_files.CONFIG} is missing or damaged"
    if "ensemble" in member.values:
        try:
            MemberPredictions.read(folder / run_files.PREDICTIONS_HELD_OUT)
        except UserError as error:
            return f"{run_files.PREDICTIONS_HELD_OUT}: {error.what}"
    return None


def _as_trained(cfg: DictConfig, place: RunFolder, member: RunMember, tell: Callable[[str], None]) -> bool:
    """Tell whether a finished member is what the plan wants now; one that is only shorter is to be trained on."""
    saved, now = _saved_config(place.member(member.name).path), to_plain(member_config(cfg, member))
    if "ensemble" in member.values:
        before, role = (MemberConfig(**tree["ensemble"].get("member") or {}) for tree in (saved, now))
        if before != role:
            differ = next(name for name, value in vars(role).items() if getattr(before, name) != value)
            raise UserError(
                f"member {member.name} of this run was trained as another one",
                key=f"ensemble.member.{differ}",
                expected=getattr(before, differ),
                received=getattr(role, differ),
                fix="a new run: lightkit train --from RUN",
                family="checkpoint-misfit",
            )
    for key in _LENGTHS:
        group, _, name = key.partition(".")
        length, wanted = saved[group].get(name), now[group].get(name)
        if length == wanted:
            continue
        others = _dependents(place.path, member.name)
        if others:
            raise UserError(
                f"member {member.name} has finished, and {', '.join(others)} went on from it or learnt what it leaves",
                key=key,
                expected=length,
                received=wanted,
                fix="a new run: lightkit train --from RUN; to this one more members may be added (ensemble.size)",
                family="checkpoint-misfit",
            )
        tell(f"member {member.name} is trained on: {key} was {length} and is {wanted}")
        return False
    return True


def _saved_config(folder: Path) -> dict[str, Any]:
    """Return the configuration that a member was trained with; empty where it cannot be read."""
    with suppress(Exception):  # a damaged file may hold anything
        found = from_yaml(read_config(folder))
        if found["ensemble"] and found["trainer"]:
            return found
    return {}


def _dependents(folder: Path, name: str) -> list[str]:
    """Return the members that need this one, as the record of the plan says, where they have begun."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        rows = read_ensemble_plan(folder)["members"]
        begun = [row for row in rows if (folder / run_files.MEMBERS / row["name"] / run_files.CONFIG).is_file()]
        return [row["name"] for row in begun if name in row["depends_on"]]
    return []
