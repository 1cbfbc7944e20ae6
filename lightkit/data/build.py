"""From a data set and plain settings to the loaders of all splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.processes import usable_cpus
from lightkit.common.randomness import mix
from lightkit.data.fitting import Report, fill_in, fit_scaling
from lightkit.data.impute import Filling
from lightkit.data.info import DataInfo
from lightkit.data.loaders import Loader
from lightkit.data.normalize import Normalizer
from lightkit.data.options import LoaderOptions
from lightkit.data.per_sample import as_transforms
from lightkit.data.prepare import Mixup, Prepare
from lightkit.data.sources import as_source
from lightkit.data.splits import SplitSpec, split_rows
from lightkit.data.tensors import Taker, TensorData


@dataclass
class Data:
    """The loaders of a data set.

    Args:
        info: What the data is.
        source: The data set itself, with what was found out about it.
        train: Training batches, shuffled and augmented.
        val: Validation batches in order; None without the split.
        test: Test batches in order; None without the split.
        normalizer: Scaling of the inputs, to be applied to new ones too; None where they are left as they are.
        filling: What fills in missing inputs; None where nothing does.
        rows: Rows of the data set in each split.
        notes: Lines for people about what became of the data, and what was fitted to it.
    """

    info: DataInfo
    source: Any
    train: Loader
    val: Loader | None = None
    test: Loader | None = None
    normalizer: Normalizer | None = None
    filling: Filling | None = None
    rows: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
            table.append((name, f"{loader.num_samples} rows, {len(loader)} batches of {loader.batch_size}"))
        return table

    def loaders(self) -> dict[str, Loader]:
        """Return the loaders there are, by the name of their split."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: loader for name, loader in named.items() if loader is not None}

    def evaluation(self, split: str) -> Loader | None:
        """Return a loader of a split in order and without augmentation, `train` too; None without such a split."""
        if split != "train":
            return self.loaders().get(split)
        prepare = replace(self.train.prepare, augment=())
        options = replace(self.train.options, shuffle=False, drop_last=False, persistent_workers=False)
        return Loader(self.source, self.rows["train"], options, prepare=prepare)

    def shortened(self, most: Mapping[str, int], *, seed: int) -> Data:
        """Return this data with fewer rows in some splits; what was fitted to all rows, such as a scaling, stays.

        Args:
            most: Rows to keep by the name of the split, drawn at random.
            seed: Seed of the draw.
        """
        rows, loaders = dict(self.rows), self.loaders()
        for name, count in most.items():
            all_rows = rows[name]
            drawn = torch.randperm(len(all_rows), generator=torch.Generator().manual_seed(mix(seed, "shortened", name)))
            rows[name] = all_rows[drawn[:count].sort().values]
            loaders[name] = loaders[name].with_rows(rows[name])
        return replace(self, rows=rows, train=loaders["train"], val=loaders.get("val"), test=loaders.get("test"))

    def close(self) -> None:
        """End all loader processes."""
        for loader in self.loaders().values():
            loader.close()


def build_data(
    *,
    dataset: Any,
    split: Mapping[str, Any] | SplitSpec,
    batch_size: int = 64,
    eval_batch_size: int | None = None,
    normalize: str | Normalizer | None = "none",
    normalize_rows: int | None = None,
    filling: Mapping[str, Any] | None = None,
    augment: Sequence[Any] = (),
    mixup: Mapping[str, Any] | None = None,
    drop_last: bool = False,
    num_workers: int = 0,
    pin_memory: bool | None = None,
    persistent_workers: bool = True,
    prefetch_factor: int = 2,
    timeout_seconds: float | None = None,
    seed: int = 0,
    pin_default: bool = False,
    replica: int = 0,
    replicas: int = 1,
    report: Report = lambda line: None,
) -> Data:
    """Split a data set, fit the scaling on its training rows and make the loaders.

    Args:
        dataset: `TensorData`, another data set with `take`, or any map-style data set.
        split: `SplitSpec` or its arguments.
        batch_size: Samples per training batch.
        eval_batch_size: Samples per batch in validation and test; None takes `batch_size`.
        normalize: `none`, `standard`, `minmax` or `image`, or a scaling that was fitted elsewhere; None is `none`.
        normalize_rows: Fit the scaling on at most so many training rows, evenly spaced; None takes all.
        filling: What was found to be filled in for missing values before (`Filling.state_dict`); None fits it.
        augment: Transforms of training inputs: of batches (`Transform`), or of one sample as in torchvision.
        mixup: `alpha` (None: no mixup) and `probability`.
        drop_last: Leave out a last smaller training batch.
        num_workers: Processes that read samples.
        pin_memory: Page-locked batches, where there is a CUDA GPU; None takes `pin_default`.
        persistent_workers: Keep the processes between epochs.
        prefetch_factor: Batches each process prepares ahead.
        timeout_seconds: Longest wait for a batch of those processes; None or 0 waits for as long as it takes.
        seed: Seed of order, augmentation and mixup.
        pin_default: Whether batches go to a GPU.
        replica: Which part of every batch to read, where processes share the batches.
        replicas: Number of those parts.
        report: Called with a line now and then while the scaling is being fitted.

    Raises:
        UserError: A setting is out of range or does not suit the data.
    """
    source = as_source(dataset)
    spec = split if isinstance(split, SplitSpec) else SplitSpec(**split)
    if spec.by == "fold" and source.info.task == "language_modeling":
        raise UserError("a text is cut in order, not into folds", argument="split.by", received="fold", expected="file")
    rows = split_rows(spec, len(source), strata=getattr(source, "strata", None), given=getattr(source, "splits", None))
    options = LoaderOptions(
        batch_size,
        shuffle=True,
        drop_last=drop_last,
        seed=seed,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        timeout_seconds=timeout_seconds,
        # Page-locking is done by the GPU's driver and raises where there is none.
        pin_memory=(pin_default if pin_memory is None else pin_memory) and torch.cuda.is_available(),
        persistent_workers=persistent_workers,
        replica=replica,
        replicas=replicas,
        split="train",
    )
    if eval_batch_size is not None and eval_batch_size < 1:
        raise UserError("too small", argument="eval_batch_size", expected="1 or more", received=eval_batch_size)
    plain = replace(options, batch_size=eval_batch_size or batch_size, shuffle=False, drop_last=False)
    source, filled = fill_in(source, rows["train"], filling)
    notes: list[str] = [*getattr(source, "notes", ())]
    if isinstance(normalize, str):
        chosen: dict[str, Any] = {"most": normalize_rows, "report": report}
        normalizer, more = fit_scaling(normalize, source, rows["train"], options, **chosen)
        notes += more
    else:
        normalizer = normalize and normalize.suited(source.info.input_shape)
    if num_workers > usable_cpus() and not isinstance(source, Taker):
        notes.append(f"data.num_workers={num_workers}: {usable_cpus()} CPUs can be used here, so they take turns")
    by_batch = normalizer
    if normalizer is not None and isinstance(source, TensorData) and source.x.is_floating_point():
        source, by_batch = source.with_inputs(normalizer(source.x)), None  # what lies in memory is scaled once
    mixer = Mixup(**mixup, seed=seed, info=source.info) if mixup and mixup.get("alpha") is not None else None
    train = Loader(source, rows["train"], options, prepare=Prepare(seed, by_batch, as_transforms(augment)), mixup=mixer)
    evaluate: dict[str, Any] = {
        name: Loader(source, rows[name], replace(plain, split=name), prepare=Prepare(seed, by_batch))
        for name in ("val", "test")
        if name in rows
    }
    fitted: dict[str, Any] = {"normalizer": normalizer, "filling": filled, "notes": tuple(notes)}
    return Data(source.info, source, train, **evaluate, rows=rows, **fitted)
