"""From a data set and plain settings to the loaders of all splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import torch
from torch import Tensor

import lightkit.data.normalize as scaling
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.common.text import counted
from lightkit.data.groups import join_equal, marks_of
from lightkit.data.impute import Filling
from lightkit.data.kept_rows import KeptRows
from lightkit.data.loaders import Loader
from lightkit.data.normalize import Normalizer
from lightkit.data.orders import spread
from lightkit.data.prepare import LoaderOptions, Mixup, Prepare, as_transforms, sees_pixels
from lightkit.data.row_facts import WEIGHTS, class_shares, row_weights
from lightkit.data.sources import Counted, as_source
from lightkit.data.splits import SplitSpec, split_source
from lightkit.data.targets import TargetTransform
from lightkit.data.tensors import DataInfo, Taker, TensorData
from lightkit.processes.children import usable_cpus

PROGRESS_SECONDS = 10.0
"""How often a line tells how far the reading of the training rows is."""
_WEIGHTED = "rows have weights: losses of all splits are weighted means, and metrics count all rows alike"
_FAR = 1000
"""Size of regression targets from which a run says that they are far from 0."""

Report = Callable[[str], None]


@dataclass
class Data:
    """The loaders of a data set.

    Args:
        info: What the data is.
        source: The data set itself, with what was found out about it.
        train: Training batches, shuffled and augmented.
        val: Validation batches in order; None without the split.
        test: Test batches in order; None without the split.
        more: Batches of further sets in order, by name.
        normalizer: Scaling of the inputs, to be applied to new ones too; None where they are left as they are.
        filling: What fills in missing inputs; None where nothing does.
        rows: Rows of the data set in each split.
        groups: The group of each row of the data set, `(N,)` int64; None where there are none.
        times: The place of each row in time, `(N,)` int64, where the splits go by it.
        left_out: Training rows that one model of several does not learn from and is to predict; None without any.
        kept: The splits of the whole run, as they are kept with it; None for data of no run.
        notes: Lines for people about what became of the data, and what was fitted to it.
    """

    info: DataInfo
    source: Any
    train: Loader
    val: Loader | None = None
    test: Loader | None = None
    more: dict[str, Loader] = field(default_factory=dict)
    normalizer: Normalizer | None = None
    filling: Filling | None = None
    rows: dict[str, Tensor] = field(default_factory=dict)
    left_out: Tensor | None = None
    notes: tuple[str, ...] = ()
    kept: KeptRows | None = None
    groups: Tensor | None = None
    times: Tensor | None = None
    _known: dict[str, Tensor | None] = field(default_factory=dict, repr=False, compare=False)

    def together(self, rows: Tensor | None = None) -> Tensor | None:
        """Return what no division of rows may tear apart: groups, and rows with the same inputs.

        The rows are read for it, the training rows once only.

        Args:
            rows: The rows to be divided; None takes the training rows.

        Returns:
            The group of each row of the data set, `(N,)` int64; None where each row is one of its own.
        """
        if rows is not None:
            return self._together(rows)
        if "together" not in self._known:
            self._known["together"] = self._together(self.rows["train"])
        return self._known["together"]

    def _together(self, rows: Tensor) -> Tensor | None:
        marks = None
        if self.info.task not in ("detection", "custom"):
            marks = marks_of(read_inputs(self.source, rows, self.train.options, purpose="equal inputs"))
        if marks is None or len(marks.unique()) == len(rows.unique()):
            return self.groups
        own = torch.arange(len(self.source)) if self.groups is None else self.groups
        return join_equal(own, rows, marks)

    def describe(self) -> list[tuple[str, str]]:
        """Return the rows of a table: task, shapes, classes, and the size of each split."""
        info = self.info
        shown = ", ".join(info.class_names[:10]) + (", …" if len(info.class_names) > 10 else "")
        table = [
            ("task", info.task),
            ("input", " × ".join(map(str, info.input_shape)) or "custom"),
            ("outputs", f"{info.num_classes}" + (f" ({shown})" if shown else "")),
        ]
        for name, loader in self.loaders().items():
            batches = f"{len(loader)} {'batch' if len(loader) == 1 else 'batches'} of {loader.batch_size}"
            table.append((name, f"{counted(len(loader.rows), 'row')}, {batches}"))
        return table

    def loaders(self) -> dict[str, Loader]:
        """Return the loaders there are, by the name of their split."""
        named = {"train": self.train, "val": self.val, "test": self.test, **self.more}
        return {name: loader for name, loader in named.items() if loader is not None}

    def with_loaders(self, loaders: Mapping[str, Any], **changes: Any) -> Data:
        """Return this data with other loaders, by the name of their split, and without those that are not named."""
        own: dict[str, Any] = {name: loaders.get(name) for name in ("train", "val", "test")}
        return replace(self, **own, more={name: loaders[name] for name in self.more if name in loaders}, **changes)

    def evaluation(self, split: str) -> Loader | None:
        """Return a loader of a split in order and without augmentation, `train` and `left_out` too.

        Returns:
            The loader; None without such a split.
        """
        if split not in ("train", "left_out"):
            return self.loaders().get(split)
        rows = self.left_out if split == "left_out" else self.rows["train"]
        if rows is None or not len(rows):
            return None
        prepare = replace(self.train.prepare, augment=())
        plain: dict[str, Any] = {"shuffle": False, "drop_last": False, "epoch_batches": None}
        options = replace(self.train.options, persistent_workers=False, **plain)
        return Loader(self.source, rows, options, prepare=prepare)

    def shortened(self, most: Mapping[str, int], *, seed: int) -> Data:
        """Return this data with fewer rows in some splits; what was fitted to all rows, such as a scaling, stays.

        Args:
            most: Rows to keep by the name of the split, drawn at random.
            seed: Seed of the draw.
        """
        rows, loaders = dict(self.rows), self.loaders()
        for name, count in most.items():
            all_rows = loaders[name].rows
            drawn = torch.randperm(len(all_rows), generator=torch.Generator().manual_seed(mix(seed, "shortened", name)))
            kept = all_rows[drawn[:count].sort().values]
            rows |= {name: kept} if name in rows else {}
            loaders[name] = loaders[name].with_rows(kept)
        return self.with_loaders(loaders, rows=rows)

    def reseeded(self, seed: int) -> Data:
        """Return the same splits in the order, and with the augmentation, of another seed."""
        rows, loaders = self.rows, self.loaders().items()
        return self.with_loaders({name: own.with_rows(rows.get(name, own.rows), seed=seed) for name, own in loaders})

    def close(self) -> None:
        """End all loader processes."""
        for loader in self.loaders().values():
            loader.close()


def build_data(
    *,
    dataset: Any,
    split: Mapping[str, Any] | SplitSpec,
    rows: Mapping[str, Tensor] | None = None,
    normalize: str | Normalizer | None = "none",
    normalize_rows: int | None = None,
    filling: Mapping[str, Any] | None = None,
    transform: TargetTransform | None = None,
    vocabulary: Sequence[str] = (),
    augment: Sequence[Any] = (),
    mixup: Mapping[str, Any] | None = None,
    weights: str | None = WEIGHTS,
    report: Report = lambda line: None,
    **loading: Any,
) -> Data:
    """Split a data set, fit the scaling on its training rows and make the loaders.

    Args:
        dataset: `TensorData`, another data set with `take`, or any map-style data set.
        split: `SplitSpec` or its arguments.
        rows: The rows of each split, where they are known; None draws them.
        normalize: `none`, `standard`, `minmax` or `image`, or a scaling that was fitted elsewhere; None is `none`.
        normalize_rows: Fit the scaling on at most so many training rows, evenly spaced; None takes all.
        filling: What was found to be filled in for missing values before (`Filling.state_dict`); None fits it.
        transform: What was found to be learnt of regression targets before; None fits what the data set asks for.
        vocabulary: The words of a run that has begun, for a data set that fits them to its training rows (`fitted`).
        augment: Transforms of training inputs: of batches (`Transform`), or of one sample as in torchvision.
        mixup: Arguments of `Mixup`; None for no mixing.
        weights: What names how much each row counts, see `lightkit.data.row_facts.row_weights`.
        report: Called with a line now and then while the scaling is being fitted.
        **loading: `LoaderOptions` of the training batches, such as `batch_size` and `num_workers`. The seed is that of
            augmentation and mixup too; batches are page-locked only where there is a CUDA GPU.

    Raises:
        UserError: A setting is out of range or does not suit the data.
    """
    source, augment = as_source(dataset), as_transforms(augment, batchwise=loading.get("augment_on_device", False))
    rows, groups, times = split_source(source, split if isinstance(split, SplitSpec) else SplitSpec(**split), rows)
    # Page-locking is done by the GPU's driver and raises where there is none.
    loading["pin_memory"] = bool(loading.get("pin_memory")) and torch.cuda.is_available()
    in_order = isinstance(getattr(source, "base", None), Counted)
    rows = {name: some.sort().values for name, some in rows.items()} if in_order else rows
    counts = row_weights(source, weights, rows["train"])
    loading |= {"num_workers": 0} if in_order else {}
    options = LoaderOptions(**loading, shuffle=not in_order, split="train", weights=counts)
    source = source.fitted(rows["train"], vocabulary) if hasattr(source, "fitted") else source
    source, filled = _fill_in(source, rows["train"], filling)
    if source.info.transform.kind != "none" and isinstance(source, TensorData):
        source = source.with_targets(transform or source.info.transform.fit(source.y[rows["train"]]))
    notes: list[str] = [*getattr(source, "notes", ())]
    normalizer, more = _fit_scaling(normalize, source, rows["train"], options, most=normalize_rows, report=report)
    notes += [*more, *_far_targets(source, rows["train"]), *([] if counts is None else [_WEIGHTED])]
    if options.num_workers and isinstance(source, Taker):
        notes.append(f"data.num_workers={options.num_workers} does nothing: the data set makes whole batches itself")
    elif options.num_workers > usable_cpus():
        crowd = f"data.num_workers={options.num_workers}"
        notes.append(f"{crowd}: {usable_cpus()} CPUs can be used here, so they take turns")
    by_batch = normalizer
    known = isinstance(source, TensorData) and source.x.is_floating_point() and not sees_pixels(augment, source.x)
    if normalizer is not None and known:
        source, by_batch = source.with_inputs(normalizer(source.x)), None  # what lies in memory is scaled once
    prepare = Prepare(options.seed, by_batch)
    train = Loader(
        source,
        rows["train"],
        options,
        prepare=replace(prepare, augment=augment),
        mixup=Mixup.from_settings(mixup, seed=options.seed, info=source.info),
    )
    if train.drawn is not None and options.sampler is not None:
        train.drawn.check(options.seed)
        taken = f"{train.num_samples:,} samples of {len(rows['train']):,} training rows"
        notes.append(f"data.sampler: an epoch has {taken}")
    named = [name for name in ("val", "test") if name in rows]
    evaluate: Any = {name: Loader(source, rows[name], options.for_evaluation(name), prepare=prepare) for name in named}
    fitted: dict[str, Any] = {"normalizer": normalizer, "filling": filled, "notes": tuple(notes)}
    info = replace(source.info, class_shares=class_shares(source, rows["train"]), weighted=counts is not None)
    return Data(info, source, train, **evaluate, rows=rows, groups=groups, times=times, **fitted)


def _fill_in(source: Any, rows: Tensor, fitted: Mapping[str, Any] | None) -> tuple[Any, Filling | None]:
    """Fill in the missing values of a data set in memory; returns it with what fills them in, None where nothing does.

    Args:
        source: The data set; one without an imputer has none.
        rows: The training rows, which alone decide what is filled in.
        fitted: What was found before (`Filling.state_dict`), in place of fitting it.

    Raises:
        UserError: A column has no value in the training rows, or what was found before is for other columns.
    """
    imputer = source.imputer if isinstance(source, TensorData) else None
    if imputer is None:
        return source, None
    filling = imputer.fit(source.x[rows]) if fitted is None else imputer.load(fitted)
    note = filling.note(source.x)
    added = [f"{name} missing" for name in filling.indicators]
    return source.with_inputs(filling(source.x), notes=[note] if note else [], added=added), filling


def _far_targets(source: Any, rows: Tensor) -> list[str]:
    """Return a line about regression targets in memory that a network, which starts near 0, takes long to reach."""
    if not isinstance(source, TensorData) or source.info.task != "regression" or not len(rows):
        return []
    low, high = (float(bound) for bound in source.y[rows].aminmax())
    if max(-low, high) < _FAR:
        return []
    scale = 10 ** round(math.log10(max(-low, high)))
    fix = f"divide them by {scale} (data.dataset.target_scale of tables)"
    return [f"targets lie between {low:g} and {high:g}, but a network starts near 0: {fix}"]


def _fit_scaling(
    kind: str | Normalizer | None,
    source: Any,
    rows: Tensor,
    options: LoaderOptions,
    *,
    most: int | None,
    report: Report,
) -> tuple[Normalizer | None, list[str]]:
    """Fit the scaling of inputs to training rows; returns it, and lines about what it was fitted to.

    Args:
        kind: See `lightkit.data.normalize.fit`; or a scaling that was fitted elsewhere, or None for none.
        source: The data set.
        rows: The training rows.
        options: Workers and time limit of the reading, for data that is not in memory.
        most: Use at most so many of the rows, evenly spaced; None uses all.
        report: Called now and then with a line that tells how far it is.

    Raises:
        UserError: The inputs cannot be scaled in this way.
    """
    if not isinstance(kind, str):
        return kind and kind.suited(source.info.input_shape), []
    if kind != "none" and getattr(source, "scales_itself", False):
        what = "each series is scaled by itself already"
        raise UserError(what, argument="normalize", received=kind, fix="data.normalize=none")
    some = rows if most is None else spread(rows, most)
    inputs = _reported(read_inputs(source, some, options, purpose="data.normalize"), kind, len(some), report)
    fitted = scaling.fit(kind, inputs)
    if fitted is not None:
        fitted.spare([place for place, size in enumerate(source.info.cardinalities) if size])
    if fitted is None or (isinstance(source, TensorData) and len(some) == len(rows)):
        return fitted, []
    share = f"{len(some):,} of the {len(rows):,}" if len(some) < len(rows) else f"all {len(rows):,}"
    return fitted, [f"data.normalize={kind} is fitted on {share} training rows"]


def _reported(batches: Iterator[Tensor], kind: str, rows: int, report: Report) -> Iterator[Tensor]:
    """Hand batches on, and report now and then how far they are."""
    done, reported = 0, monotonic()
    for batch in batches:
        yield batch
        done += len(batch)
        if monotonic() - reported >= PROGRESS_SECONDS:
            reported = monotonic()
            report(f"data.normalize={kind}: {done:,} of {rows:,} training rows read (data.normalize_rows: fewer)")


_IN_MEMORY, _READ = 4096, 64
"""Rows at once; fixed, so that the last bits depend on no setting."""


def read_inputs(source: Any, rows: Tensor, options: LoaderOptions, *, purpose: str) -> Iterator[Tensor]:
    """Yield the inputs of rows piece by piece; loader processes, where they are used, end with the reading.

    Args:
        source: The data set.
        rows: The rows, `(N,)` int64.
        options: Workers and time limit of the reading, for data that is not in memory.
        purpose: What they are read for, for messages.

    Raises:
        UserError: Samples are no pairs of input and target.
    """
    if isinstance(source, TensorData):
        yield from (source.take(piece)[0] for piece in rows.split(_IN_MEMORY))
        return
    how = {name: getattr(options, name) for name in ("num_workers", "prefetch_factor", "timeout_seconds")}
    reading = LoaderOptions(_READ, persistent_workers=False, split=f"train, read for {purpose}", **how)
    with closing(Loader(source, rows, reading)) as loader:
        for batch in loader.epoch(0):
            if not isinstance(batch, tuple) or (purpose == "data.normalize" and not isinstance(batch[0], Tensor)):
                raise UserError("only pairs of input and target can be scaled", argument="normalize", expected="none")
            yield batch[0]
