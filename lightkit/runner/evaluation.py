"""A trained model on a split: which weights, and what they reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightkit.assembly import Components
from lightkit.checkpoint import content
from lightkit.common.errors import UserError
from lightkit.trainer import evaluate
from lightkit.trainer.interrupt import AskedToEnd, Interrupt


def load_weights(parts: Components, checkpoint: str, folder: Path) -> None:
    """Put saved weights into the model: the averaged ones where the run kept an average.

    Args:
        parts: The parts of the run.
        checkpoint: `best`, `last` or the path of a checkpoint file.
        folder: The run's folder, for the message.

    Raises:
        UserError: There is no such checkpoint, or its weights do not fit the model.
    """
    weights = content.load_model_state(_path(parts, checkpoint, folder))
    problems = content.model_problems(weights, parts.model)
    if problems:
        raise problems[0]
    content.load_model(parts.model, weights)


def _path(parts: Components, checkpoint: str, folder: Path) -> Path:
    if checkpoint not in ("best", "last"):
        return Path(checkpoint)
    store = parts.store
    path = None if store is None else (store.best() or store.newest()) if checkpoint == "best" else store.newest()
    if path is None:
        raise UserError("the run has no checkpoint", key=str(folder), fix="train it first")
    return path


def evaluate_split(
    parts: Components,
    split: str,
    collectors: Sequence[Any] = (),
    *,
    interrupt: Interrupt | None = None,
    step: int = 0,
) -> dict[str, float]:
    """Metrics of the model's present weights on a split, without augmentation.

    Args:
        parts: The parts of the run.
        split: `train`, `val` or `test`.
        collectors: What else gets every batch.
        interrupt: Tells when a signal asked the run to end.
        step: Optimizer step that a run ends at.

    Raises:
        UserError: The data has no such split.
        Interrupted: A signal asked the run to end.
    """
    loader = parts.data.evaluation(split)
    if loader is None:
        raise UserError("the data has no such split", received=split, choices=parts.data.loaders())
    metrics = parts.metrics[split]
    metrics.reset()
    parts.engine.seed_validation(0)
    asked = interrupt or Interrupt()
    try:
        evaluate(
            parts.network,
            loader,
            [metrics, *collectors],
            task=parts.task,
            criterion=parts.criterion,
            context=parts.engine,
            each=lambda _batch: asked.raise_at(step),
            interrupt=asked,
        )
    except AskedToEnd:
        asked.raise_at(step)
        raise
    values: dict[str, float] = metrics.compute()
    return values
