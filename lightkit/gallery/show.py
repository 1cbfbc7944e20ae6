"""The three pages: data as the network gets it, predictions beside targets, the samples with the largest loss."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.data import Data
from lightkit.gallery.charts import (
    inputs_chart,
    losses_chart,
    predicted_chart,
    samples_chart,
    statistics,
    targets_chart,
)
from lightkit.gallery.judged import predicted_numbers, results, worst
from lightkit.gallery.page import Page, PageSection, cards, chart, facts, strip
from lightkit.gallery.samples import Sample, loader_of, read_samples, variants
from lightkit.trainer.learner import Learner

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
    page = Page(
        title, f"{len(samples)} of {loader.num_samples} rows, {where}", samples_chart(samples, view, title), samples
    )
    scaled = ["The scaling of the inputs is undone for the eye."] if data.normalizer is not None else []
    page.sections.append(PageSection("Data", facts([*data.describe(), *(("note", note) for note in data.notes)])))
    page.sections.append(PageSection("Samples", cards(samples, view), " ".join([*scaled, *view.notes])))
    if augmented and loader.prepare.augment and samples:
        rows = variants(data, samples[:_VARIED], _EPOCHS)
        lines = [strip(f"row {of_one[0].row}", [each.x for each in of_one], view) for of_one in rows]
        page.sections.append(PageSection("Augmentation", "\n".join(lines), f"The same rows in {_EPOCHS} epochs."))
    found = statistics(data)
    for heading, figure in (("Targets", targets_chart(found, data)), ("Inputs", inputs_chart(found, view))):
        if figure is not None:
            page.sections.append(PageSection(heading, chart(figure)))
    return page


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
    page = Page(title, f"{len(samples)} of {total} rows, spread evenly", samples_chart(samples, view, title), samples)
    numbers = predicted_numbers(learner, split)
    if numbers is not None:
        page.sections.append(PageSection("All predictions", chart(predicted_chart(*numbers))))
    page.sections.append(PageSection("Samples", cards(samples, view), " ".join([_how(samples), *view.notes]).strip()))
    return page


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
    share = float(
        losses.nan_to_num(0).sort(descending=True).values[: len(samples)].sum() / losses.nansum().clamp(min=1e-30)
    )
    subtitle = f"{len(samples)} of {len(losses)} rows, with {min(1.0, share):.0%} of the total loss"
    page = Page(title, subtitle, samples_chart(samples, view, title), samples)
    page.sections.append(PageSection("Samples", cards(samples, view), " ".join([_how(samples), *view.notes]).strip()))
    page.sections.append(PageSection("Losses", chart(losses_chart(losses))))
    return page


def _how(samples: Sequence[Sample]) -> str:
    """Say how to read the samples."""
    answers = [sample.answer for sample in samples if sample.answer is not None]
    judged = [answer.is_right for answer in answers if answer.is_right is not None]
    if judged:
        return f"Target → prediction; {sum(judged)} of these {len(judged)} are right."
    return "Tokens that were predicted wrongly are marked." if any(answer.pieces for answer in answers) else ""
