"""The three pages: data as the network gets it, predictions beside targets, the samples with the largest loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.modules import mapped
from lightkit.data import Data, Loader
from lightkit.gallery.charts import (
    inputs_chart,
    losses_chart,
    predicted_chart,
    samples_chart,
    statistics,
    targets_chart,
)
from lightkit.gallery.samples import (
    Page,
    PageSection,
    Sample,
    answer,
    loader_of,
    read_in_order,
    read_samples,
    spread,
    target_words,
    variants,
)
from lightkit.gallery.views import InputView, PlacedView, TextView
from lightkit.runner.evaluation import pass_over
from lightkit.trainer.evaluate import task_of
from lightkit.trainer.learner import Learner
from lightkit.trainer.tasks import Criterion, Retrieval, Supervised

_VARIED, _EPOCHS = 4, 8
"""Samples whose augmentation is shown, and in how many epochs."""


def data_page(data: Data, name: str, *, split: str = "train", count: int = 32, epoch: int = 0) -> Page:
    """Show samples of a split as the network gets them, and how targets and inputs are distributed.

    Args:
        data: The splits.
        name: What the data set is called.
        split: `train`, `val` or `test`.
        count: Samples at most.
        epoch: Training epoch that the samples are of, from 0.

    Raises:
        UserError: There is no such split.
    """
    loader = loader_of(data, split)
    samples, view = read_samples(data, split, count, epoch=epoch)
    augmented = split == "train" and (bool(loader.prepare.augment) or loader.mixup is not None)
    title = f"{name}: {split}"
    where = f"epoch {epoch}, {'augmented' if augmented else 'not augmented'}" if split == "train" else "spread evenly"
    scaled = ["The scaling of the inputs is undone for the eye."] if data.normalizer is not None else []
    sections = [
        PageSection("Data", facts=[*data.describe(), *(("note", note) for note in data.notes)]),
        PageSection("Samples", " ".join([*scaled, *view.notes]), samples=samples),
    ]
    if augmented and loader.prepare.augment and samples:
        rows = variants(data, samples[:_VARIED], _EPOCHS)
        strips = [(f"row {of_one[0].row}", [each.x for each in of_one]) for of_one in rows]
        sections.append(PageSection("Augmentation", f"The same rows in {_EPOCHS} epochs.", strips=strips))
    found = statistics(data)
    for heading, figure in (("Targets", targets_chart(found, data)), ("Inputs", inputs_chart(found, view))):
        sections += [PageSection(heading, figure=figure)] if figure is not None else []
    subtitle = f"{len(samples)} of {loader.num_samples} rows, {where}"
    return Page(title, subtitle, view, samples_chart(samples, view, title), samples, sections)


def results_page(learner: Learner, name: str, *, split: str = "test", count: int = 32) -> Page:
    """Show predictions of a trained model beside the targets.

    Args:
        learner: The model with its data.
        name: What the run is called.
        split: `train`, `val` or `test`.
        count: Samples at most, evenly spaced.

    Raises:
        UserError: There is no such split, or nothing in it.
    """
    samples, view = results(learner, split, count)
    title = f"{name}: results on {split}"
    total = loader_of(learner.data, split, training=False).num_samples
    numbers = predicted_numbers(learner, split)
    sections = [PageSection("All predictions", figure=predicted_chart(*numbers))] if numbers is not None else []
    sections.append(PageSection("Samples", " ".join([_how(samples), *view.notes]).strip(), samples=samples))
    subtitle = f"{len(samples)} of {total} rows, spread evenly"
    return Page(title, subtitle, view, samples_chart(samples, view, title), samples, sections)


def worst_page(learner: Learner, name: str, *, split: str = "test", count: int = 32) -> Page:
    """Show the samples of a split with the largest loss, the worst first.

    Args:
        learner: The model with its data.
        name: What the run is called.
        split: `train`, `val` or `test`.
        count: Samples at most.

    Raises:
        UserError: There is no such split, or the loss compares samples with each other.
    """
    samples, view, losses = worst(learner, split, count)
    title = f"{name}: largest losses on {split}"
    largest = losses.nan_to_num(0).sort(descending=True).values[: len(samples)]
    share = float(largest.sum() / losses.nansum().clamp(min=1e-30))
    subtitle = f"{len(samples)} of {len(losses)} rows, with {min(1.0, share):.0%} of the total loss"
    sections = [
        PageSection("Samples", " ".join([_how(samples), *view.notes]).strip(), samples=samples),
        PageSection("Losses", figure=losses_chart(losses)),
    ]
    return Page(title, subtitle, view, samples_chart(samples, view, title), samples, sections)


def _how(samples: Sequence[Sample]) -> str:
    """Say how to read the samples."""
    answers = [sample.answer for sample in samples if sample.answer is not None]
    judged = [answer.is_right for answer in answers if answer.is_right is not None]
    if judged:
        return f"Target → prediction; {sum(judged)} of these {len(judged)} are right."
    return "Tokens that were predicted wrongly are marked." if any(answer.pieces for answer in answers) else ""


class NoSampleLosses(Exception):
    """The loss of a batch cannot be told apart by samples."""


class SampleLosses:
    """Collects the loss of every sample.

    Args:
        criterion: A loss whose `reduction` can be switched off; None where batches hold one sample each, whose loss is
            that of the batch.
    """

    def __init__(self, criterion: Criterion | None) -> None:
        self._criterion = criterion
        self._losses = list[Tensor]()

    def update(self, preds: Tensor | None, target: Tensor | None, loss: Tensor, size: int, *_more: Any) -> None:
        """Take in one batch; see `lightkit.trainer.evaluate.Meter`.

        Raises:
            NoSampleLosses: The criterion gives one number for all of them.
        """
        found = loss.detach().reshape(1) if self._criterion is None else unreduced(self._criterion, preds, target)
        if found is None or len(found) != size:
            raise NoSampleLosses
        self._losses.append(found.float().cpu())

    def losses(self) -> Tensor:
        """Return the losses of all samples, `(N,)` float32."""
        return torch.cat(self._losses) if self._losses else torch.zeros(0)


class SampleOutputs:
    """Keeps the output of every sample, and its target."""

    def __init__(self) -> None:
        self.preds, self.targets = list[Any](), list[Any]()

    def update(self, preds: Any, target: Any, loss: Tensor, size: int, *_more: Any) -> None:
        """Take in one batch; see `lightkit.trainer.evaluate.Meter`."""
        for value, kept in ((preds, self.preds), (target, self.targets)):
            if isinstance(value, list) and len(value) == size:
                kept += mapped(lambda tensor: tensor.detach().cpu(), value)
            elif isinstance(value, Tensor) and len(value) == size:
                kept += (value.detach().float() if value.is_floating_point() else value.detach()).cpu().unbind()


def unreduced(criterion: Criterion, preds: Any, target: Any) -> Tensor | None:
    """Return the loss of each sample, `(N,)`; None where the criterion does not tell them apart.

    Args:
        criterion: The loss.
        preds: Outputs of a model `(N, ...)`.
        target: Their targets `(N, ...)`.
    """
    if not isinstance(criterion, nn.Module) or getattr(criterion, "reduction", None) not in ("mean", "sum"):
        return None
    before = criterion.reduction
    criterion.reduction = "none"  # type: ignore[assignment]
    try:
        values = criterion(preds, target)
    finally:
        criterion.reduction = before
    fits = isinstance(values, Tensor) and values.ndim > 0 and len(values) == len(preds)
    return values.detach().flatten(1).mean(1) if fits and values.ndim > 1 else values.detach() if fits else None


def sample_losses(learner: Learner, loader: Loader) -> Tensor:
    """Compute the loss of each sample, in the order of the loader.

    Args:
        learner: A trained model with its data.
        loader: Samples in order, without augmentation.

    Returns:
        `(N,)` float32.

    Raises:
        UserError: The loss compares samples, so that none has a loss of its own.
    """
    criterion = learner.criterion
    if getattr(criterion, "compares_samples", False):
        what = "this loss compares samples with each other: none has a loss of its own"
        raise UserError(what, key="loss", received=type(criterion).__name__, fix="`lightkit show results` needs none")
    tried = SampleLosses(criterion)
    if type(learner.task) in (Supervised, Retrieval):
        with suppress(NoSampleLosses):
            pass_over(learner, loader, [tried])
            return tried.losses()
    one_by_one = SampleLosses(None)
    pass_over(learner, loader.with_rows(loader.rows, batch_size=1), [one_by_one])
    return one_by_one.losses()


def results(learner: Learner, split: str, count: int) -> tuple[list[Sample], InputView]:
    """Choose samples of a split, evenly spaced, with what the model says of them.

    Args:
        learner: A trained model with its data.
        split: `train`, `val` or `test`.
        count: How many at most.

    Raises:
        UserError: There is no such split.
    """
    loader = loader_of(learner.data, split, training=False)
    loader = loader.with_rows(spread(loader.rows, count))
    samples, view = answered(learner, loader)
    if getattr(learner.criterion, "compares_samples", False):
        return samples, view
    losses = sample_losses(learner, loader).tolist()
    return [replace(sample, loss=loss) for sample, loss in zip(samples, losses)], view


def worst(learner: Learner, split: str, count: int) -> tuple[list[Sample], InputView, Tensor]:
    """Find the samples of a split with the largest loss.

    Args:
        learner: A trained model with its data.
        split: `train`, `val` or `test`.
        count: How many at most.

    Returns:
        The samples, the worst first; how their inputs are shown; and the losses of all, `(N,)`.

    Raises:
        UserError: There is no such split, or samples have no losses of their own.
    """
    loader = loader_of(learner.data, split, training=False)
    losses = sample_losses(learner, loader)
    # a loss that is not a number is the worst of all
    ranked = losses.nan_to_num(nan=torch.inf).argsort(descending=True, stable=True)[:count]
    samples, view = answered(learner, loader.with_rows(loader.rows[ranked]))
    return [replace(sample, loss=loss) for sample, loss in zip(samples, losses[ranked].tolist())], view, losses


def answered(learner: Learner, loader: Loader) -> tuple[list[Sample], InputView]:
    """Read the samples of a loader with what the model says of them.

    Args:
        learner: A trained model with its data.
        loader: A few samples in order, without augmentation.
    """
    kept = SampleOutputs()
    pass_over(learner, loader, [kept])
    samples, view = read_in_order(learner.data, loader, loader.rows)
    info, decode = learner.data.info, view.decode if isinstance(view, TextView) else None
    if len(kept.preds) != len(samples):
        return samples, view
    if samples and info.task == "custom" and len(kept.targets) == len(samples):  # the task knows what they are
        if len({one.shape for one in kept.preds}) == len({one.shape for one in kept.targets}) == 1:
            outputs, targets = torch.stack(kept.preds), torch.stack(kept.targets)
            info = replace(info, task=task_of(info.task, info.class_names, outputs, targets))
        samples = [replace(sample, y=y, target=target_words(y, info)) for sample, y in zip(samples, kept.targets)]
    if isinstance(view, PlacedView):
        samples = [replace(sample, x=(*sample.x, output)) for sample, output in zip(samples, kept.preds)]
    pairs = zip(samples, kept.preds)
    return [replace(sample, answer=answer(output, sample.y, info, decode)) for sample, output in pairs], view


def predicted_numbers(learner: Learner, split: str) -> tuple[Tensor, Tensor] | None:
    """Return the predictions and targets of a whole split where each is one number, `(N,)` both; else None.

    Args:
        learner: A trained model with its data.
        split: `train`, `val` or `test`.
    """
    if learner.data.info.task != "regression" or learner.data.info.num_classes != 1:
        return None
    kept = SampleOutputs()
    pass_over(learner, loader_of(learner.data, split, training=False), [kept])
    if not kept.preds or len(kept.preds) != len(kept.targets):
        return None
    both = (torch.stack(kept.preds).flatten(), torch.stack(kept.targets).flatten())
    outputs, targets = map(learner.data.info.in_unit, both)
    return (outputs, targets) if outputs.shape == targets.shape == (len(kept.preds),) else None
