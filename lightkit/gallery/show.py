"""The pages of `lightkit show`: data, predictions beside targets, the largest losses, and what a model goes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.drawing import BLUE, new_figure
from lightkit.common.errors import UserError
from lightkit.common.hub import installed
from lightkit.common.modules import mapped
from lightkit.data import Data, Loader, TensorData
from lightkit.data.orders import spread
from lightkit.gallery import charts
from lightkit.gallery import samples as sampled
from lightkit.gallery.samples import Page, PageSection, Sample, loader_of
from lightkit.gallery.views import ImageView, InputView, PlacedView, TableView, TextView
from lightkit.runner.evaluation import evaluate_split, pass_over
from lightkit.trainer.evaluate import task_of
from lightkit.trainer.learner import Learner
from lightkit.trainer.tasks import Criterion, Retrieval, Supervised, logits

_VARIED, _EPOCHS = 4, 8
"""Samples whose augmentation is shown, and in how many epochs."""
_PRINTED = 10
"""Samples with the largest loss that are printed, too."""
_SHARED = "Columns that go together share their importance: while one is permuted, another still tells the same."
_SIGNS = "Red in the copy of an image is what counts for this output; of a table, what is far from 0."


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
    samples, view = sampled.read_samples(data, split, count, epoch=epoch)
    augmented = split == "train" and (bool(loader.prepare.augment) or loader.mixup is not None)
    title = f"{name}: {split}"
    where = f"epoch {epoch}, {'augmented' if augmented else 'not augmented'}" if split == "train" else "spread evenly"
    scaled = ["The scaling of the inputs is undone for the eye."] if data.normalizer is not None else []
    sections = [
        PageSection("Data", facts=[*data.describe(), *(("note", note) for note in data.notes)]),
        PageSection("Samples", " ".join([*scaled, *view.notes]), samples=samples),
    ]
    if augmented and loader.prepare.augment and samples:
        rows = sampled.variants(data, samples[:_VARIED], _EPOCHS)
        strips = [(f"row {of_one[0].row}", [each.x for each in of_one]) for of_one in rows]
        sections.append(PageSection("Augmentation", f"The same rows in {_EPOCHS} epochs.", strips=strips))
    found = charts.statistics(data)
    for heading, figure in (
        ("Targets", charts.targets_chart(found, data)),
        ("Inputs", charts.inputs_chart(found, view)),
    ):
        sections += [PageSection(heading, figure=figure)] if figure is not None else []
    subtitle = f"{len(samples)} of {loader.num_samples} rows, {where}"
    return Page(title, subtitle, view, charts.samples_chart(samples, view, title), samples, sections)


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
    sections = [PageSection("All predictions", figure=charts.predicted_chart(*numbers))] if numbers is not None else []
    sections.append(PageSection("Samples", " ".join([_how(samples), *view.notes]).strip(), samples=samples))
    subtitle = f"{len(samples)} of {total} rows, spread evenly"
    return Page(title, subtitle, view, charts.samples_chart(samples, view, title), samples, sections)


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
        PageSection("Losses", figure=charts.losses_chart(losses)),
    ]
    # of a text, what was predicted is no text
    first = [replace(one, answer=None) if one.answer and one.answer.pieces else one for one in samples[:_PRINTED]]
    names = ("row", "loss", "target", "prediction", "file")
    table = [{name: one.plain().get(name) for name in names} for one in first]
    return Page(title, subtitle, view, charts.samples_chart(samples, view, title), samples, sections, table)


def importance_page(
    learner: Learner, name: str, goal: Sequence[str], *, split: str, count: int, repeats: int = 10
) -> Page:
    """Show by how much a metric gets worse when a column of a table is permuted, over all rows of a split.

    All that a column is made of (the inputs of its names, the parts of a date, whether it is missing) is permuted
    together, by `sklearn.inspection.permutation_importance` (Breiman 2001, https://doi.org/10.1023/A:1010933404324;
    Fisher, Rudin & Dominici 2019, https://arxiv.org/abs/1801.01489).

    Args:
        learner: A trained model with its data.
        name: What the run is called.
        goal: The metric whose value on this split counts, such as `val/accuracy` (the loss where the split has no such
            metric), and whether `max` or `min` of it is better.
        split: `train`, `val` or `test`.
        count: Columns at most, the most important first.
        repeats: Permutations of each column.

    Raises:
        UserError: There is no such split, or the data are no table whose columns have names.
    """
    from sklearn.dummy import DummyRegressor
    from sklearn.inspection import permutation_importance

    loader, metrics = loader_of(learner.data, split, training=False), learner.metrics[split]
    source, rows, before = loader.source, loader.rows, evaluate_split(learner, split)
    columns = columns_of(source) if isinstance(source, TensorData) else {}
    if not columns:
        raise UserError("these data are no table whose columns have names", key="lightkit show importance")
    metric, sign = f"{split}/{goal[0].partition('/')[2]}", 1 if goal[1] == "max" else -1
    metric, sign = (metric, sign) if metric in before else (f"{split}/loss", -1)

    def score(_: Any, taken: Any, _targets: Any) -> float:
        mixed = source.x.clone()
        for places, own in zip(columns.values(), taken.T):
            mixed[rows[:, None], places] = source.x[rows[own]][:, places]
        metrics.reset()
        pass_over(learner, Loader(source.with_inputs(mixed), rows, loader.options, prepare=loader.prepare), [metrics])
        return sign * float(metrics.compute()[metric])

    of_whom = torch.arange(len(rows))[:, None].expand(-1, len(columns)).numpy()  # whose value a row has in a column
    found = permutation_importance(DummyRegressor(), of_whom, None, scoring=score, n_repeats=repeats, random_state=0)
    told = zip(columns, found.importances_mean.tolist(), found.importances_std.tolist())
    table = [dict(zip(("column", "drop", "sd"), line)) for line in sorted(told, key=lambda line: -line[1])[:count]]
    title, subtitle = f"{name}: importance on {split}", f"{metric} {before[metric]:.4f} on {len(rows):,} rows"
    figure, axes = new_figure(7.0, 1.4 + 0.26 * len(table), title)
    names, drops, errors = zip(*(line.values() for line in table[::-1]))
    axes.barh(names, drops, xerr=errors, color=BLUE)
    axes.set_xlabel(f"how much worse {metric} gets when a column is permuted")
    note = f"{repeats} permutations of each. {_SHARED} {_closest(source.x[rows], columns, names)}"
    sections = [PageSection("Columns", note, figure=figure)]
    return Page(title, subtitle, InputView(learner.data), figure, [], sections, table)


def columns_of(source: TensorData) -> dict[str, list[int]]:
    """Return the places of the features that each column of a table is made of; none where these have no names."""
    kinds, found = getattr(source.reader, "encodings", {}), dict[str, list[int]]()
    owners = {f"{column}{part}": column for column, kind in kinds.items() for part in (*kind.parts, " missing")}
    for place, feature in enumerate(source.feature_names):
        found.setdefault(owners.get(feature, feature.removesuffix(" missing")), []).append(place)
    return found


def _closest(x: Tensor, columns: Mapping[str, list[int]], names: Sequence[str]) -> str:
    """Say which two of the named columns go together most in rows `(N, F)`, by the correlation of their features."""
    strength, pairs = torch.corrcoef(x.T).reshape(x.shape[1], -1).abs().nan_to_num(), combinations(names, 2)
    found = ((float(strength[columns[one]][:, columns[other]].max()), one, other) for one, other in pairs)
    most, one, other = max(found, default=(0.0, "", ""))
    return f"Here {one} and {other} are closest, with a correlation of {most:.2f}." if most > 0.5 else ""


def attributions_page(
    learner: Learner, name: str, split: str, count: int, method: str = "integrated_gradients"
) -> Page:
    """Show what in each input speaks for the output of a model, of classes that which is predicted, by captum.

    Args:
        learner: A trained model with its data.
        name: What the run is called.
        split: `train`, `val` or `test`.
        count: Samples at most, evenly spaced.
        method: `integrated_gradients` from zeros to the input (Sundararajan et al. 2017,
            https://arxiv.org/abs/1703.01365), `saliency`, the size of the gradient (Simonyan et al. 2014,
            https://arxiv.org/abs/1312.6034), or `input_x_gradient`.

    Raises:
        UserError: captum is not installed, or the inputs are neither images nor rows of a table.
    """
    captum = installed("captum.attr", "pip install 'lightkit[explain]'", argument="", received=method)
    samples, view = results(learner, split, count)
    if type(view) not in (ImageView, TableView) or learner.data.info.task == "custom":
        what = "attributions are for images, and for tables, with one kind of target"
        raise UserError(what, key="lightkit show attributions", received=view.kind)
    learner.network.eval()
    method, shown = "".join(map(str.capitalize, method.split("_"))), list[Sample]()
    explain = getattr(captum, method)(lambda x: logits(learner.network(x)).reshape(len(x), -1))
    for sample in samples:  # one at a time: integrated gradients make 50 inputs of each
        with learner.engine.autocast():
            x = learner.engine.move(sample.x[None]).requires_grad_()
            found = explain.attribute(x, target=int(explain.forward_func(x).argmax()))[0].detach().float().cpu()
        shown.append(replace(sample, x=view.highlighted(sample.x, found) if isinstance(view, ImageView) else found))
    view, title = type(view)(replace(learner.data, normalizer=None)), f"{name}: attributions on {split}"
    view.wide = True
    sections = [PageSection("Samples", f"By {method}. {_how(samples)} {_SIGNS}", samples=shown)]
    return Page(title, f"{len(shown)} rows", view, charts.samples_chart(shown, view, title), shown, sections)


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
    samples, view = sampled.read_in_order(learner.data, loader, loader.rows)
    info, decode = learner.data.info, view.decode if isinstance(view, TextView) else None
    if len(kept.preds) != len(samples):
        return samples, view
    if samples and info.task == "custom" and len(kept.targets) == len(samples):  # the task knows what they are
        if len({one.shape for one in kept.preds}) == len({one.shape for one in kept.targets}) == 1:
            outputs, targets = torch.stack(kept.preds), torch.stack(kept.targets)
            info = replace(info, task=task_of(info.task, info.class_names, outputs, targets))
        samples = [
            replace(sample, y=y, target=sampled.target_words(y, info)) for sample, y in zip(samples, kept.targets)
        ]
    if isinstance(view, PlacedView):
        samples = [replace(sample, x=(*sample.x, output)) for sample, output in zip(samples, kept.preds)]
    pairs = zip(samples, kept.preds)
    return [replace(sample, answer=sampled.answer(output, sample.y, info, decode)) for sample, output in pairs], view


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
