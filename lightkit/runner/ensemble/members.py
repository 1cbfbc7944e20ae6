"""The members of an ensemble as its plan sees them: what they predict and reach, and the weights that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightkit.assembly import Shared
from lightkit.assembly.parts import build_loss, build_metrics
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.config import to_plain
from lightkit.config.member_values import with_values
from lightkit.ensemble.combining import as_logits
from lightkit.ensemble.file import StoredMember
from lightkit.ensemble.methods import Method, RunFacts
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.losses import mean_weight
from lightkit.metrics.stacked import StackedMetrics
from lightkit.runner.ensemble.report import values_of
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.session import Session
from lightkit.runs.reading import read_config
from lightkit.trainer.tasks import fit_shape


class SplitMeter:
    """Measures predictions by loss and metrics of the run, which are built once.

    Args:
        cfg: The configuration.
        shared: What all models of the run share.
        split: What is measured, which the values are called by: `val`, `test`; or training rows that were left out
            (`oof`, `holdout`), with the metrics of `val`.
        only: Name of the one metric that is wanted; empty measures all.
    """

    def __init__(self, cfg: DictConfig, shared: Shared, split: str, *, only: str = "") -> None:
        self._kind, self._name = split if split in ("val", "test") else "val", split
        nodes = to_plain(cfg.metrics[self._kind])
        if only in (*nodes, "loss"):
            chosen = {self._kind: {only: nodes[only]} if only in nodes else {}}
            cfg = OmegaConf.create({**cfg, "metrics": {**cfg.metrics, **chosen}})
        self._device = shared.engine.device
        # One process has all rows.
        self._metrics: Any = build_metrics(cfg, shared.data.info, shared.engine, alone=True)[self._kind]
        self._criterion = build_loss(cfg, shared.data.info, shared.engine)
        loader = shared.data.loaders().get(split)
        self._batch = None if loader is None else loader.batch_size

    def at_once(self, rows: MemberPredictions, predictions: Sequence[Tensor]) -> list[dict[str, float]]:
        """Return the values of different predictions `(N, C)` of the same rows."""
        target, metrics = rows.targets.to(self._device), StackedMetrics(self._metrics, len(predictions))
        outputs = [fit_shape(as_logits(one, rows.task).to(self._device), target) for one in predictions]
        losses = torch.stack([self._criterion(output, target) for output in outputs])
        metrics.update(torch.stack(outputs), target.expand(len(outputs), *target.shape), losses, len(rows))
        return [self._named(values) for values in metrics.compute()]

    def __call__(self, rows: MemberPredictions) -> dict[str, float]:
        """Return the values of some rows, all of which were predicted.

        They are taken in the batches of an evaluation: of shares of votes many are equal, and a softmax rounds by where
        a row stands in its batch.
        """
        target = rows.targets.to(self._device)
        output = fit_shape(as_logits(rows.predictions, rows.task).to(self._device), target)
        self._metrics.reset()
        size = self._batch or len(rows)
        for own, truth in zip(output.split(size), target.split(size)):
            weight = mean_weight(self._criterion, own, truth)
            self._metrics.update(own, truth, self._criterion(own, truth), len(truth), weight=weight)
        return self._named(self._metrics.compute())

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        return {f"{self._name}/{key.partition('/')[2]}": value for key, value in values.items()}


class Members:
    """The members of an ensemble that its own run trains.

    Args:
        run: The run.
        shared: What they share.
    """

    finished: Sequence[MemberResult] = ()
    """Runs that had finished before, and come before what is trained."""

    def __init__(self, run: Session, shared: Shared) -> None:
        self.run, self.shared = run, shared

    def checked(self, method: Method, facts: RunFacts) -> RunFacts:
        """Return what the method has to know of the run.

        Raises:
            UserError: The method does not go with the data or the rest of the configuration.
        """
        return checked(method, facts, self.shared)

    def begin(self) -> None:
        """Write what members that are trained now learn from."""

    def predictions(self, result: MemberResult) -> MemberPredictions:
        """Return what a member predicts of rows that it did not learn from."""
        return result.predictions or MemberPredictions.read(result.folder / run_files.PREDICTIONS_HELD_OUT)

    def values(self, result: MemberResult, own: MemberPredictions, apart: Tensor) -> dict[str, float]:
        """Return loss and metrics of a member.

        Args:
            result: The member.
            own: What it predicts.
            apart: Training rows that are called `holdout`.
        """
        last = result.member.values.get("trainer.test", self.run.cfg.trainer.test) == "last"
        return {**values_of(result, last=last), **self.measured(own.of_split("train"), apart)}

    def measured(self, predictions: MemberPredictions, apart: Tensor) -> dict[str, float]:
        """Return loss and metrics of predictions, by the names of the rows; see `MemberPredictions.by_rows`."""
        found = dict[str, float]()
        for name, rows in predictions.by_rows(apart).items():
            found |= SplitMeter(self.run.cfg, self.shared, name)(rows.take(rows.predicted))
        return found

    def stored(
        self, results: Sequence[MemberResult], weights: Mapping[str, float]
    ) -> tuple[list[StoredMember], dict[str, Any]]:
        """Return the networks of some members as the file of the ensemble has them, and what else it says of them."""
        members = []
        for result in results:
            cfg = member_config(self.run.cfg, result.member) if result.weights is None else self.run.cfg
            state = result.weights or content.load_model_state(counted_checkpoint(cfg, result.folder))
            name = result.member.name
            members.append(StoredMember(name, read_config(result.folder), weights.get(name, 0.0), state))
        return members, {}

    def beginnings(self, facts: RunFacts) -> dict[str, DictConfig]:
        """Return the configuration of each kind of member, which says what weights it began with."""
        return {name: with_values(self.run.cfg, own) for name, own in facts.members} or {"each member": self.run.cfg}

    def place(self, member: RunMember) -> str:
        """Tell where the folder of a member is, from that of the ensemble."""
        return f"{run_files.MEMBERS}/{member.name}"

    def recorded(self) -> dict[str, Any]:
        """Return what `ensemble.json` says of where the members come from."""
        return {}


def checked(method: Method, facts: RunFacts, shared: Shared) -> RunFacts:
    """Return what a method has to know of a run that trains its members.

    Raises:
        UserError: The method does not go with the data or the rest of the configuration.
    """
    if method.divides:
        facts = replace(facts, groups=shared.data.together())
    with keys_under("ensemble"):
        method.check(facts)
    return facts


def count_weights(members: Sequence[StoredMember]) -> int:
    """Count the numbers in all networks, but for running statistics."""
    weights = (tensor for member in members for name, tensor in member.state.items() if "running_" not in name)
    return sum(tensor.numel() for tensor in weights if tensor.is_floating_point())


def counted_checkpoint(cfg: DictConfig, folder: Path, *, last: bool | None = None) -> Path:
    """Return the checkpoint with the weights that count, of a run that has ended.

    Args:
        cfg: Its configuration.
        folder: Its folder.
        last: Whether the last weights count; None goes by the configuration.

    Raises:
        UserError: It has none.
    """
    store = CheckpointStore(folder / run_files.CHECKPOINTS, mode=cfg.metrics.mode)
    path = (None if (cfg.trainer.test == "last" if last is None else last) else store.best()) or store.newest()
    if path is None:
        raise UserError("the run has no checkpoint", key=str(folder), fix="train it first", family="no-checkpoint")
    return path
