"""Which members of a run train at once: those that are alike, where that can be done and pays."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import OmegaConf

from lightkit.assembly import Learner, Shared, build_learner, build_own, build_twin
from lightkit.assembly.parts import role_of
from lightkit.common import run_files
from lightkit.common.reading import UnreadableError, parse_json, read_file
from lightkit.common.shapes import TEXTS
from lightkit.common.text import counted
from lightkit.ensemble.alike import difference, gain, refusal
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.runner.ensemble.group_training import GroupTraining, Keep
from lightkit.runner.ensemble.member_files import is_own, leaves
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.session import Session
from lightkit.runs.catalog import has_checkpoints

TrainOne = Callable[[Session, RunMember, Shared], MemberResult]


def train_at_once(
    run: Session,
    members: Sequence[RunMember],
    shared: Shared,
    train: TrainOne,
    *,
    finished: Mapping[str, MemberResult] = MappingProxyType({}),
    engine: str = "auto",
    splits: Sequence[str] = (),
    keep: Keep = lambda run, trained: None,
) -> list[MemberResult]:
    """Train members at once where that can be done and pays, the others one after the other.

    Args:
        run: The run.
        members: All that can be trained now, with those that an earlier part of the run has finished.
        shared: What they share.
        train: Trains one member alone.
        finished: Those that an earlier part of the run has trained, by name.
        engine: `vectorized` does not ask whether it pays; `auto` does.
        splits: Splits whose outputs `keep` needs.
        keep: Called for each member that was trained with others, before its result is written; may return what it
            predicts.

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
        group = MemberGroup(run, groups.pop(0), shared, engine)
        if group.prepare():
            training = GroupTraining(run, group.cfg, group.group, group.stack, folder=group.folder, finished=finished)
            found |= {result.member.name: result for result in training.train(splits, keep)}
        groups += [group.others] if len(group.others) > 1 else []
        alone += [f"{one.name}: it has another number of rows" for one in group.others if len(group.others) == 1]
    for line in alone:
        run.tell(f"one after the other trains {line}")
    return [found.get(member.name) or train(run, member, shared) for member in members]


def alike(run: Session, members: Sequence[RunMember], finished: Mapping[str, MemberResult]) -> list[list[RunMember]]:
    """Return groups of two and more members that differ in seeds and rows alone and are still to be trained.

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
    alone, lines = [member for member in members if member.name not in others], list[str]()
    for member in alone:
        if has_checkpoints(run.place.member(member.name).path):
            lines.append(f"{member.name}: it has begun to train by itself")
    fresh = [member for member in alone if not any(line.startswith(f"{member.name}:") for line in lines)]
    if not fresh:
        return lines
    values = [leaves(member.values) for member in members]
    every = dict.fromkeys(key for own in values for key in own)
    keys = [key for key in every if not is_own(key)]
    differing = [key for key in keys if len({json.dumps(own.get(key, "-"), default=str) for own in values}) > 1]
    missing = [key for key in every if any(key not in own for own in values)]
    names = ", ".join(member.name for member in fresh)
    what = f"no other member has the same {' and '.join(differing)}" if differing else "no other member is left"
    if missing and not differing:
        what = f"{' and '.join(missing)} is not given for each member"
    rate = ", and a step of all at once has one learning rate" if differing == ["optim.lr"] else ""
    return [*lines, f"{names}: {what}{rate}"]


def _by_kind(members: Sequence[RunMember]) -> list[list[RunMember]]:
    """Group members that differ in seeds and rows alone."""
    groups: dict[str, list[RunMember]] = {}
    for member in members:
        values = leaves(member.values)
        key = [{name: value for name, value in values.items() if not is_own(name)}, [*values]]
        groups.setdefault(json.dumps(key, default=str), []).append(member)
    return [*groups.values()]


def _named(file: Path) -> list[str]:
    with suppress(FileNotFoundError, UnreadableError):
        found: Any = parse_json(read_file(file))
        return found if TEXTS.fits(found) else []
    return []


class MemberGroup:
    """One group of alike members, built to train at once where that can be done and pays.

    Args:
        run: The run.
        group: The members.
        shared: What all members of the run share.
        engine: See `train_at_once`.
    """

    def __init__(self, run: Session, group: Sequence[RunMember], shared: Shared, engine: str) -> None:
        self.run, self.group, self.shared, self.engine = run, list(group), shared, engine
        self.cfg = member_config(run.cfg, self.group[0])  # but for seeds and rows that of all
        self.others: list[RunMember] = []
        """Members that have another number of rows than the first, as the last folds have, and train by themselves."""
        self.folder = run.place.path / run_files.TOGETHER / self.group[0].name
        """Where the state of all is kept while they train."""

    def prepare(self) -> bool:
        """Build the members; tell whether they will train at once, and why."""
        reason, why = self._refusal(), "ensemble.engine=vectorized"
        if not reason and self.engine == "auto" and not (self.folder / run_files.TOGETHER_MEMBERS).exists():
            faster, why = gain(self.stack, self.learners)
            reason = "" if faster is not None and faster > 1.0 else f"that is faster: {why}"
        count = counted(len(self.group), "member")
        self.run.tell(
            f"{count} train at once ({why})" if not reason else f"{count} train one after the other: {reason}"
        )
        return not reason

    def _refusal(self) -> str:
        """Build the members, and stack them; return why they cannot train at once, empty where they can."""
        if reason := self._role() or self._shown():
            return reason
        first = self._first()
        if reason := refusal([first]):
            return reason
        learners, length = [first, *self._twins(first)], first.data.train.epoch_samples
        fits = [learner.data.train.epoch_samples == length for learner in learners]
        self.learners = [*compress(learners, fits)]
        self.others = [member for member, fit in zip(self.group, fits) if not fit]
        self.group = [*compress(self.group, fits)]
        if len(self.group) == 1:
            return "they have different numbers of rows"
        if reason := refusal(self.learners):
            return reason
        self.stack = Stack([StackMember(own.name, learner) for own, learner in zip(self.group, self.learners)])
        return difference(self.stack)

    def _role(self) -> str:
        """Return what the members learn otherwise than models alone; empty where nothing."""
        role = role_of(self.cfg)
        reasons = {
            "they begin with the weights of another member": role.weights_of,
            "their weights are computed from those of other members": role.computed_from,
            "they learn what other members leave": role.adds_to is not None,
            "they learn from what other members predict": role.features,
            "they are several networks each": role.joint,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def _shown(self) -> str:
        """Return what is to be shown of one model in training; empty where nothing is."""
        cfg = self.cfg
        shown = cfg.logger.tensorboard
        if cfg.profile:
            return "profile=true watches one model"
        if more := cfg.logger.get("more"):
            return f"logger.more.{next(iter(more))} follows one model"
        return "logger.tensorboard shows the inputs or the graph of a model" if shown.images or shown.graph else ""

    def _first(self) -> Learner:
        """Build the first member as if it trained alone."""
        run, member = self.run, self.group[0]
        run.memory.cfg = cfg = self.cfg
        folder = run.place.member(member.name).path
        own = build_own(cfg, self.shared, folder)
        run.stack.callback(own.data.close)
        learner = build_learner(cfg, own, folder)
        run.memory.parts = learner
        return learner

    def _twins(self, first: Learner) -> list[Learner]:
        """Build the others: of them only model, seeds and rows."""
        cfg, twins = copy.deepcopy(self.cfg), list[Learner]()
        OmegaConf.set_readonly(cfg, False)
        for own in self.group[1:]:
            for key, value in ((key, value) for key, value in leaves(own.values).items() if is_own(key)):
                OmegaConf.update(cfg, key, value)
            twins.append(build_twin(cfg, self.shared, first, self.run.place.member(own.name).path))
        return twins
