"""The evaluation of many alike models at once, each on its own rows of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.checkpoint import content
from lightkit.data import Loader
from lightkit.ensemble.stack import StackMember
from lightkit.ensemble.stacked import Computation, StackedLoader, StackedModel, StackedTask
from lightkit.metrics import SplitMetrics
from lightkit.metrics.stacked import StackedMetrics
from lightkit.runner.ensemble.predictions import Outputs
from lightkit.runner.session import Session
from lightkit.trainer.evaluate import evaluate
from lightkit.trainer.interrupt import AskedToEnd


def evaluate_ended(
    parts: Sequence[StackMember], splits: Sequence[str], *, cfg: DictConfig, saves: bool, run: Session
) -> dict[str, list[Outputs]]:
    """Load the weights that count into the models of members that have ended, and test them.

    Args:
        parts: The members; the values of their tests are logged.
        splits: Splits whose outputs are needed.
        cfg: The configuration of all.
        saves: Whether there are checkpoints, and so best weights.
        run: The run.

    Returns:
        The outputs of each by split.
    """
    test = cfg.trainer.test
    bests = saves and cfg.checkpoint.keep_best > 0 and test != "last"
    for part in parts:
        saved = part.best if bests and part.best is not None else part.last
        assert saved is not None, "ended"
        content.load_model(part.learner.model, content.model_state(saved))
    tested = test != "none" and parts[0].learner.data.test is not None
    figures = bool(cfg.metrics.figures) and test != "none"
    outputs: dict[str, list[Outputs]] = {}
    for split in dict.fromkeys([*splits, *(["test"] if tested else [])]):
        found, values = evaluate_together(parts, split, collect=split in splits or figures, run=run)
        if found:
            outputs[split] = found
        if split == "test" and tested:
            for part, own in zip(parts, values):
                part.state.last.update(own)
                part.history.scalars(own, step=part.state.step, epoch=part.state.epoch)
    return outputs


def evaluate_together(
    parts: Sequence[StackMember], split: str, *, collect: bool, run: Session
) -> tuple[list[Outputs], list[dict[str, float]]]:
    """Evaluate the models of members on a split, each on its own rows.

    Returns:
        The outputs of each where they are collected, and the values of its metrics where the split has some.
    """
    first = parts[0].learner
    loaders = [part.learner.data.evaluation(split) for part in parts]
    known = [loader for loader in loaders if loader is not None]
    if len(known) < len(parts):
        return [], []
    if len({loader.num_samples for loader in known}) > 1:
        pieces = [evaluate_together([part], split, collect=collect, run=run) for part in parts]
        return [found for own, _ in pieces for found in own], [values for _, own in pieces for values in own]
    shared = all(loader.rows.equal(known[0].rows) for loader in known)
    model = StackedModel([part.learner.model for part in parts])
    computation = Computation(model, first.network, first.task, first.criterion)
    like = first.metrics.get(split)
    meters: list[Any] = [StackedMetrics(like, len(parts))] if isinstance(like, SplitMetrics) else []
    taken = Taken()
    first.engine.seed_validation(0)
    try:
        evaluate(
            model,
            known[0] if shared else StackedLoader(known),
            [*meters, *([taken] if collect else [])],
            task=StackedTask(computation, shared=shared),
            criterion=first.criterion,
            context=first.engine,
            each=lambda _batch: run.signals.raise_at(parts[0].state.step),
            interrupt=run.signals,
        )
    except AskedToEnd:
        run.signals.raise_at(parts[0].state.step)
        raise
    values = meters[0].compute() if meters else []
    return taken.of(known) if collect else [], values


class Taken:
    """Collects the outputs of many models."""

    def __init__(self) -> None:
        self._preds: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, preds: Tensor | None, target: Tensor | None, *_more: Any) -> None:
        """Take in a batch, `(M, B, ...)`."""
        if preds is not None and target is not None:
            self._preds.append(preds.detach().float().cpu())
            self._targets.append(target.detach().cpu())

    def of(self, loaders: Sequence[Loader]) -> list[Outputs]:
        """Return what each model gave for the rows of its loader."""
        if not self._preds:
            return []
        preds, targets = torch.cat(self._preds, 1), torch.cat(self._targets, 1)
        return [Outputs(loader.rows, *pair) for loader, *pair in zip(loaders, preds, targets)]
