"""What the members of an ensemble come to together: their predictions as one, its values, the weights that count."""

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
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import to_plain
from lightkit.ensemble.combining import as_logits, hard, soft
from lightkit.ensemble.file import StoredMember
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked
from lightkit.losses import mean_weight
from lightkit.metrics.stacked import StackedMetrics
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


def combined(members: Sequence[MemberPredictions], weights: Tensor, rule: str) -> MemberPredictions:
    """Make one of the predictions of several members.

    Args:
        members: Their predictions.
        weights: How much each counts, `(M,)`.
        rule: See `lightkit.ensemble.methods.Method.rule`.
    """
    together = aligned(members)
    first, predictions = together[0], stacked(together)
    if rule == "last":
        return together[-1]
    found = hard(predictions, weights, task=first.task) if rule == "hard" else soft(predictions, weights)
    counts = torch.stack([member.counts for member in together]).sum(0)
    counts = torch.where(found.isnan().any(1), torch.zeros_like(counts), counts)
    return replace(first, counts=counts, predictions=found)


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
