"""A stack of finished runs: a meta-model is trained on rows that none of them trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config.saved import from_yaml
from lightkit.ensemble.file import StoredMember
from lightkit.ensemble.methods import Stacking
from lightkit.ensemble.methods.stacking import Base
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.ensemble.stacking import stack_features
from lightkit.runner.ensemble.combined import counted_checkpoint
from lightkit.runner.ensemble.library import Library
from lightkit.runner.ensemble.stacking import StackingPlan
from lightkit.runs.reading import read_config

_TRAIN, _VAL, _TEST = range(len(SPLITS))
_FEWEST, _FEWEST_JUDGES = 10, 5
_PATIENCE = "trainer.early_stopping.patience"


class StackedLibrary(Library, StackingPlan):
    """Trains a meta-model on what finished runs predict, and decides by rows that nothing saw whether it is used.

    The rows that no run trained on, but those of the test split, are divided: from some the meta-model learns, by the
    others (`ensemble.holdout`) it is judged. These are the validation split of the ensemble. The predictions of each
    run are kept below `members/` in this division, so that the meta-model is a run like any other.

    Args:
        *args: Those of `Library`.

    Raises:
        UserError: There are too few such rows, or the meta-model would be selected by the rows that judge it.
    """

    method: Stacking

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        rows = self.unseen[0].of_split("train", "val").rows
        self.facts = replace(self.facts, rows=rows, groups=self.shared.data.together(rows))
        self._check_settings()
        learnt, judged = self.method.rows(self.facts)
        self._check_rows(learnt, judged)
        self.unseen = [_divided(own, judged) for own in self.unseen]

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`: the meta-model alone is trained."""
        if done:
            return super().next(done)
        for name, own in zip(self.runs, self.unseen):
            folder = self.run.place.member(name).path
            folder.mkdir(parents=True, exist_ok=True)
            own.write(folder / run_files.PREDICTIONS_HELD_OUT)
        role = {"rows": "predicted", "features": [[name] for name in self.runs]}
        meta = self.method.meta_model(self.facts, len(self.runs), passthrough=self.method.passthrough, **role)
        meta = replace(meta, values={"metrics.figures": [], _PATIENCE: None, **meta.values})
        self.run.members.expect([meta.name])
        self._record(self._finished(), [meta], {})
        return [meta]

    def _check_settings(self) -> None:
        """Refuse settings by which the rows that judge the meta-model would have a say in it before."""
        what = "a meta-model learns from some of the rows that no run trained on, and is judged by the others"
        if self.method.holdout == 0:
            fix = "a share such as 0.33; or --method voting, which nothing is learnt for"
            raise UserError(what, argument="holdout", received=0, fix=fix, family="ensemble")
        patience = self.facts.meta.get(_PATIENCE)
        if patience is not None:
            fix = "ensemble.meta.trainer.steps, which says how long it trains"
            raise UserError(what, argument=f"meta.{_PATIENCE}", received=patience, fix=fix, family="ensemble")

    def _check_rows(self, learnt: Tensor, judged: Tensor) -> None:
        """Refuse rows that are too few to learn from, or to judge by."""
        own = self.unseen[0]
        info = self.shared.data.info
        size = math.prod(info.input_shape) if self.method.passthrough and info.input_shape else 0
        inputs = stack_features([one.predictions[:0] for one in self.unseen], info.task).shape[1] + size
        counts = f"{len(learnt)} to learn from, {len(judged)} to judge by"
        fix = "runs with a larger validation split (data.split.val), or --method voting"
        facts: dict[str, Any] = {"key": "lightkit ensemble --method stacking", "fix": fix, "family": "ensemble"}
        least = max(_FEWEST, inputs)
        if len(learnt) < least or len(judged) < _FEWEST_JUDGES:
            raise UserError(
                "too few rows that no run trained on, but those of the test split, for a meta-model",
                expected=f"{least} rows or more to learn from (it has {inputs} inputs), {_FEWEST_JUDGES} to judge by",
                received=counts,
                **facts,
            )
        if info.task == "multiclass":
            there = own.targets[torch.isin(own.rows, learnt)].reshape(-1).long().unique().tolist()
            missing = [name for number, name in enumerate(info.class_names) if number not in there]
            if missing:
                what = "the rows that no run trained on lack a class, which a meta-model would never predict"
                raise UserError(what, received=f"{counts}; none of {', '.join(missing)}", **facts)

    def _known(self, done: Sequence[MemberResult]) -> dict[str, MemberPredictions]:
        """Return what the runs predict of rows that none of them trained on, and what the meta-model does."""
        return {**dict(zip(self.runs, self.unseen)), **super()._known(done[-1:])}

    def _bases(self, done: Sequence[MemberResult]) -> list[Base]:
        """Return the runs as bases."""
        del done
        return [Base((name,)) for name in self.runs]

    def _store(self, done: Sequence[MemberResult], shares: Mapping[str, float]) -> int:
        """Write the networks that count, and those that feed them, into one file; return how many weights they have."""
        *runs, meta = done
        used = bool(shares.get(meta.member.name))
        counted = [run for run in runs if used or shares[run.member.name]]
        members, more = self._networks(counted, {name: shares.get(name, 0.0) for name in self.runs})
        if used:
            config = read_config(meta.folder)
            state = content.load_model_state(counted_checkpoint(OmegaConf.create(from_yaml(config)), meta.folder))
            members.append(StoredMember(meta.member.name, config, 1.0, state))
            more["inputs"] = {name: own.plain() for name, own in self._inputs([meta]).items()}
        return self._write(members, more)

    def _place(self, member: RunMember) -> str:
        """Tell where the folder of a member is: that of the meta-model is below that of the ensemble."""
        return super()._place(member) if member.name in self.runs else f"{run_files.MEMBERS}/{member.name}"


def _divided(own: MemberPredictions, judged: Tensor) -> MemberPredictions:
    """Put the rows to learn from into the training split, and those to judge by into the validation split."""
    split = torch.where(torch.isin(own.rows, judged), _VAL, _TRAIN).to(own.split.dtype)
    own = replace(own, split=torch.where(own.split == _TEST, own.split, split))
    order = own.rows.argsort(stable=True)
    return own.take(order[own.split[order].argsort(stable=True)])
