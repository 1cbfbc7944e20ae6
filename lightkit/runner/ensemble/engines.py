"""How the members of an ensemble that need nothing of each other are trained."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from omegaconf import DictConfig

from lightkit.assembly import Shared, build_learner, build_own
from lightkit.common import run_files
from lightkit.common.errors import FAILED, POINTER, UserError
from lightkit.common.reading import TEXTS, UnreadableError, parse_json, read_file
from lightkit.config import to_yaml
from lightkit.ensemble.methods.base import NO_ENSEMBLE, MemberResult, RunMember
from lightkit.processes.children import NOTHING, PIPE, Child, lightkit_command, lightkit_path, usable_cpus
from lightkit.runner.ensemble.group_training import GroupTraining
from lightkit.runner.ensemble.member_files import OWN, leaves, may_differ
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.messages import farewell
from lightkit.runner.session import Session
from lightkit.runs.catalog import has_checkpoints
from lightkit.runs.reading import read_result
from lightkit.trainer.interrupt import Interrupted

TrainOne = Callable[..., MemberResult]
"""`lightkit.runner.Runner.train_member`."""
_POLL_SECONDS = 0.05
_LOG_LINES = 15


def train_members(run: Session, members: Sequence[RunMember], shared: Shared, train: TrainOne) -> list[MemberResult]:
    """Train members, but for those that an earlier part of the run has trained.

    Args:
        run: The run.
        members: None of them needs another one.
        shared: What they share.
        train: Trains one.

    Returns:
        Their results, in the same order.
    """
    found = {member.name: run.finished(member) for member in members}
    left = [member for member in members if found[member.name] is None]
    engine = options_of(run.cfg).get("engine", "sequential")
    earlier = {name: result for name, result in found.items() if result is not None}
    if engine == "torchensemble" and left:
        from lightkit.runner.ensemble.torchensemble_engine import TorchEnsembleEngine  # brings torchensemble

        results = TorchEnsembleEngine(run, shared, train).train(members, left)
    elif engine == "processes" and len(left) > 1 and run.ranks.size == 1:
        results = train_side_by_side(run, left, shared)
    elif engine in ("auto", "vectorized") and left and len(members) > 1:  # one may be left of those at once
        results = train_at_once(run, members, shared, train, engine=engine, finished=earlier)
    else:
        if engine == "vectorized" and left:
            run.tell(f"one after the other trains {left[0].name}: no other member can be trained now")
        results = [train(run, member, shared) for member in left]
    found |= {result.member.name: result for result in results}
    return [result for result in found.values() if result is not None]


def options_of(cfg: DictConfig) -> Mapping[str, Any]:
    """Return how the models of a run are trained: those of a cross-validation, or of an ensemble.

    Folds that are ensembles have members themselves, and are processes one after the other.
    """
    if not cfg.cv.folds:
        return cast("Mapping[str, Any]", cfg.ensemble)
    if cfg.ensemble._target_ == NO_ENSEMBLE:
        return cast("Mapping[str, Any]", cfg.cv)
    return {"engine": "processes", "slots": cfg.cv.slots or 1}


@dataclass
class _Child:
    """A process that trains a member."""

    member: RunMember
    slot: int
    process: Child
    """The pipe to it stays open as long as it runs: it ends where the one that started it is gone."""


def train_side_by_side(run: Session, members: Sequence[RunMember], shared: Shared) -> list[MemberResult]:
    """Train members in processes of their own, each of which reads the data again.

    Args:
        run: The run.
        members: None of them needs another one.
        shared: What is built for all of them here.

    Raises:
        UserError: One of them failed; the others have saved and ended.
        Interrupted: A signal asked the run to end; all have saved.
    """
    first, folder = member_config(run.cfg, members[0]), run.place.member(members[0].name).path
    learner = build_learner(first, build_own(first, shared, folder), folder)
    run.begin(learner.engine, learner.data, learner)  # what is wrong with the first one has left no trace
    del learner
    gpus, slots = _places(run, shared, len(members))
    waiting, running, free = list(members), list[_Child](), list(range(slots))
    with ExitStack() as stack:
        stack.callback(_end, running)
        asked, failed = False, list[_Child]()
        while running or (waiting and not asked):
            while waiting and free and not asked:
                running.append(_start(run, waiting.pop(0), free.pop(0), gpus))
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                child.process.end()
                free.append(child.slot)
                failed += [child] if child.process.returncode else []
                _tell_end(run, child)
            if (run.signals.number or failed) and not asked:
                asked = True
                for child in running:  # these save and end
                    child.process.send_signal(run.signals.number or signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
        if run.signals.number:
            stop = Interrupted(run.signals.number, 0)
            run.tell(farewell(stop, run.place.path, saved=True))
            raise stop
        if failed:
            raise _failure(failed[0])
    folders = [run.place.member(member.name).path for member in members]
    return [MemberResult(member, folder, read_result(folder)) for member, folder in zip(members, folders)]


def _places(run: Session, shared: Shared, count: int) -> tuple[list[str], int]:
    """Return the GPUs to share out, by the names that CUDA takes, and how many processes may run at once."""
    gpus = list[str]()
    if shared.engine.device.type == "cuda" and run.cfg.device.name in ("auto", "cuda"):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = seen.split(",") if seen else [str(number) for number in range(torch.cuda.device_count())]
    # Another number of threads in a process would add numbers up in another order than the run itself does.
    usual = len(gpus) or (1 if shared.engine.device.type != "cpu" else usable_cpus() // torch.get_num_threads())
    return gpus, max(1, min(options_of(run.cfg).get("slots") or usual, count))


def _start(run: Session, member: RunMember, slot: int, gpus: Sequence[str]) -> _Child:
    """Start the process of a member: an ordinary run, told by standard input what to do."""
    values = {**member.values, **({"device.gpus": None} if gpus else {})}  # it sees one GPU only
    cfg, folder = member_config(run.cfg, RunMember(member.name, values)), run.place.member(member.name).path
    job = {
        "cfg": to_yaml(cfg),
        "folder": str(folder),
        "overrides": run.overrides,
        "resume": run.resumes and has_checkpoints(folder),
    }
    own = {"PYTHONPATH": lightkit_path(), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    own |= {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {}
    variables = {**os.environ, **own}
    process = Child(lightkit_command("train", "--rank"), stdin=PIPE, output=NOTHING, keeps=True, variables=variables)
    process.tell(json.dumps(job))
    run.tell(f"member {member.name} begins (process {process.pid})")
    return _Child(member, slot, process)


def _end(children: Sequence[_Child]) -> None:
    """End the processes that are left, where something went wrong here."""
    for child in children:
        child.process.end()


def _tell_end(run: Session, child: _Child) -> None:
    """Show what a member came to."""
    found = read_result(run.place.member(child.member.name).path).get("objective") or {}
    if not child.process.returncode and isinstance(found.get("value"), float):
        run.tell(f"member {child.member.name} has ended: best {found['name']} {found['value']:.4f}")


def _failure(child: _Child) -> UserError:
    """Return why the process of a member failed, as it has said."""
    code, said = child.process.returncode, child.process.said.splitlines()
    # The line that points to where its error is explained goes: this one's own will.
    lines = "\n".join([line for line in said if not line.startswith(POINTER)][-_LOG_LINES:]).removeprefix("error: ")
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    return UserError(
        f"the process of member {child.member.name} {how}" + (f":\n{lines}" if lines else ""),
        key=f"{run_files.MEMBERS}/{child.member.name}",
        fix="`lightkit resume RUN` goes on with the members that are left",
        exit_code=code if code > 0 else FAILED,
    )


def train_at_once(
    run: Session,
    members: Sequence[RunMember],
    shared: Shared,
    train: TrainOne,
    *,
    finished: Mapping[str, MemberResult] = MappingProxyType({}),
    engine: str = "auto",
) -> list[MemberResult]:
    """Train members at once where that can be done and pays, the others one after the other.

    Args:
        run: The run.
        members: All that can be trained now, with those that an earlier part of the run has finished.
        shared: What they share.
        train: Trains one member alone.
        finished: Those that an earlier part of the run has trained, by name.
        engine: `vectorized` does not ask whether it pays; `auto` does.

    Returns:
        Their results, in the same order.

    Raises:
        UserError: Something the user gave is wrong.
        Interrupted: A signal asked the run to end; it has saved.
    """
    found: dict[str, MemberResult] = dict(finished)
    groups = alike(run, members, finished)
    alone = _reasons(run, members, [*finished, *(member.name for group in groups for member in group)])
    while groups:
        group = GroupTraining(run, groups.pop(0), shared, engine=engine, finished=finished)
        if group.prepare():
            found |= {result.member.name: result for result in group.train()}
        elif len(finer := _by_kind(group.members, OWN.__contains__)) > 1:
            groups += [part for part in finer if len(part) > 1]
        groups += [group.others] if len(group.others) > 1 else []
        alone += [f"{one.name}: it has another number of rows" for one in group.others if len(group.others) == 1]
    for line in alone:
        run.tell(f"one after the other trains {line}")
    return [found.get(member.name) or train(run, member, shared) for member in members]


def alike(run: Session, members: Sequence[RunMember], finished: Mapping[str, MemberResult]) -> list[list[RunMember]]:
    """Return groups of two and more members that may train at once and are still to be trained.

    A group that was training when the run was killed stays together, with those of it that have been written since.
    """
    begun = [_named(file) for file in (run.place.path / run_files.TOGETHER).glob(f"*/{run_files.TOGETHER_MEMBERS}")]
    fresh = [
        member
        for member in members
        if not any(member.name in names for names in begun)
        and member.name not in finished
        and not has_checkpoints(run.place.member(member.name).path)
    ]
    parts = [*([member for member in members if member.name in names] for names in sorted(begun)), fresh]
    groups = [group for part in parts for group in _by_kind(part)]
    return [group for group in groups if len(group) > 1 and not all(member.name in finished for member in group)]


def _reasons(run: Session, members: Sequence[RunMember], others: Sequence[str]) -> list[str]:
    """Say why members train by themselves that no other one is like.

    Args:
        run: The run.
        members: All that can be trained now.
        others: Names of those that have finished, or train with others.
    """
    alone = [member.name for member in members if member.name not in others]
    begun = [name for name in alone if has_checkpoints(run.place.member(name).path)]
    lines = [f"{name}: it has begun to train by itself" for name in begun]
    fresh = [name for name in alone if name not in begun]
    if not fresh:
        return lines
    values = [leaves(member.values) for member in members]
    every = dict.fromkeys(key for own in values for key in own)
    keys = [key for key in every if not may_differ(key)]
    differing = [key for key in keys if len({json.dumps(own.get(key, "-"), default=str) for own in values}) > 1]
    missing = [key for key in every if any(key not in own for own in values)]
    what = f"no other member has the same {' and '.join(differing)}" if differing else "no other member is left"
    if missing and not differing:
        what = f"{' and '.join(missing)} is not given for each member"
    return [*lines, f"{', '.join(fresh)}: {what}"]


def _by_kind(members: Sequence[RunMember], own: Callable[[str], bool] = may_differ) -> list[list[RunMember]]:
    """Group members that differ in nothing but their own."""
    groups: dict[str, list[RunMember]] = {}
    for member in members:
        groups.setdefault(kind_of(member, own), []).append(member)
    return [*groups.values()]


def kind_of(member: RunMember, own: Callable[[str], bool] = OWN.__contains__) -> str:
    """Return a text that members have in common which differ in nothing but their own."""
    values = leaves(member.values)
    return json.dumps([{name: value for name, value in values.items() if not own(name)}, sorted(values)], default=str)


def _named(file: Path) -> list[str]:
    with suppress(FileNotFoundError, UnreadableError):
        found: Any = parse_json(read_file(file))
        return found if TEXTS.fits(found) else []
    return []
