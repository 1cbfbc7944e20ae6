"""Any data set as something a loader can read and the rest can be sized by, and one sample of it."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_dead_worker, is_out_of_memory, user_frame
from lightkit.common.randomness import mix
from lightkit.data.placed import box_fault, is_dense
from lightkit.data.targets import count_classes
from lightkit.data.tensors import DataInfo, Taker, TensorData, check_classes, check_inputs, check_targets, fingerprint

_SCAN_LIMIT = 10_000


class SampleData:
    """A data set that is read sample by sample, with what had to be found out about it.

    Args:
        base: Anything with `__len__` and `__getitem__`. Attributes it may have: `info` (a `DataInfo`), `splits`,
            `strata`, `groups` (the group of each row), `row_names` (what a resume knows the rows by when the data have
            changed), `place_of` (a method: what messages call a row), `notes` (lines about it for people), `left_out`
            (what it leaves out, and why), `decode` (makes a text of token numbers), `targets` or `labels` (all targets
            at once), `classes` (their names, or their number), `shards` (the first row of each of its files), `draws`
            (False: draws no random numbers), `__getitems__` (reads a list of rows at once, where it draws none),
            `read_whole` (reads a row, with a function that changes the levels of its picture in place of scaling it),
            `collate_fn` (makes a batch of a list of samples), `sources` (the files that it is read from, or texts that
            change with the data).

    Raises:
        UserError: It is empty, a target does not fit, or the targets cannot be found out.
    """

    def __init__(self, base: Any) -> None:
        if not len(base):
            raise UserError("the data set is empty", argument="", received=type(base).__name__)
        self.base, self.numbers = base, range(len(base))
        self.draws: bool = getattr(base, "draws", True)
        self.collate_fn: Callable[[list[Any]], Any] | None = getattr(base, "collate_fn", None)
        self.splits: Mapping[str, Any] | None = getattr(base, "splits", None)
        self.shards: Tensor | None = getattr(base, "shards", None)
        self.notes: tuple[str, ...] = tuple(getattr(base, "notes", ()))
        self.left_out: Mapping[str, str] = getattr(base, "left_out", {})
        self.targets = targets = _known_targets(base)
        info = getattr(base, "info", None)
        self.info: DataInfo = info if isinstance(info, DataInfo) else _infer(base, targets, self.named)
        if self.info.decode is None and callable(getattr(base, "decode", None)):
            self.info = dataclasses.replace(self.info, decode=base.decode)
        if targets is not None:
            check_targets(targets, self.info, name=type(base).__name__, named=self.named)
        strata = getattr(base, "strata", None)
        self.strata = strata if strata is not None or self.info.task != "multiclass" else targets

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, row: int) -> Any:
        return self.base[row]

    def reopened(self) -> SampleData:
        """Return a copy: what opens its files at the first sample must not hand them on to worker processes open."""
        with suppress(Exception):  # it may refuse to be copied
            other = copy.copy(self)
            other.base = copy.copy(self.base)
            return other
        return self

    def named(self, row: int) -> Any:
        """Return what messages call a row: its name, its place in a file, or its number."""
        names = getattr(self.base, "row_names", None)
        return getattr(self.base, "place_of", names.__getitem__ if names is not None else int)(row)

    def check(self, batch: Any, rows: list[int]) -> None:
        """Refuse NaN, infinity and labels out of range in a batch of `rows`; only pairs (input, target) are looked at.

        Raises:
            UserError: A sample is wrong; its row in the data set is named.
        """
        name = type(getattr(self.base, "stream", self.base)).__name__
        pair = isinstance(batch, tuple) and len(batch) == 2
        for row, x, target in zip(rows, *batch) if pair and self.info.task == "detection" else ():
            if fault := box_fault(target, self.info.num_classes, x.shape[-2:]):
                raise UserError(f"{name}: row {self.named(row)} has {fault}", argument="")
        pair = pair and all(isinstance(part, Tensor) for part in batch)
        if self.info.task == "custom" or not pair or len(batch[0]) != len(rows):
            return
        check_inputs(batch[0], self.info, name=name, named=lambda at: self.named(rows[at]))
        check_targets(batch[1], self.info, name=name, named=lambda at: self.named(rows[at]))


_FACTS = ("info", "classes", "targets", "splits", "collate_fn")


class Counted:
    """Samples of a stream without an index, by how many come before: those are read and dropped to get to a row.

    Only this process reads it. The generators of Python, NumPy and PyTorch are seeded for each sample by its place, so
    that every reading gives the same samples. At its end it begins anew.

    Args:
        stream: The stream; some of its attributes are those of a data set.
        samples: How many to take where it does not say.

    Raises:
        UserError: Nobody says how many samples there are.
    """

    draws = False

    def __init__(self, stream: Any, samples: int) -> None:
        self.stream, self.samples = stream, len(stream) if hasattr(stream, "__len__") else samples
        if not self.samples:
            fix = "trainer.steps=1000, or trainer.epoch_steps with trainer.epochs; or a method __len__"
            raise UserError("the stream does not say how many samples it has", argument="", fix=fix)
        self.__dict__ |= {name: getattr(stream, name) for name in _FACTS if hasattr(stream, name)}
        self._items, self._next = None, 0  # type: Any, int
        skips = "no loader process reads it, and a resume or a validation reads it from its beginning and skips"
        self.notes = (f"a stream without an index: {self.samples:,} samples, in its own order in each epoch; {skips}",)

    def __len__(self) -> int:
        return self.samples

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_items": None}

    def __getitem__(self, row: int) -> Any:
        if self._items is None or row < self._next:
            self._items, self._next = chain.from_iterable(repeat(self.stream, self.samples)), 0
        while self._next <= row:
            seed_generators(mix("stream", self._next))
            sample, self._next = next(self._items), self._next + 1
        return sample


def as_source(dataset: Any, samples: int = 0) -> Any:
    """Return a data set as a `Taker` where it can make whole batches, otherwise as `SampleData`.

    Args:
        dataset: Any data set.
        samples: Those of the whole run, for a stream that does not say how long it is.

    Raises:
        UserError: It is no map-style data set, or has one class only.
    """
    source: Any = Counted(dataset, samples) if isinstance(dataset, IterableDataset) else dataset
    dataset = source
    plain = isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__
    if plain and len(dataset.tensors) == 2:
        kept: dict[str, Any] = {name: getattr(dataset, name, None) for name in ("splits", "strata", "groups")}
        source = TensorData(*dataset.tensors, **kept)
    elif not isinstance(dataset, (Taker, SampleData)):
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            expected = "__len__ and __getitem__, or TensorData"
            raise UserError("not a data set", argument="", expected=expected, received=type(dataset).__name__)
        source = SampleData(dataset)
    check_classes(source.info)
    return source


def own_method(base: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of a data set that reads rows in a way of its own, unless a subclass has changed how one is read.

    Args:
        base: The data set.
        name: The method; None is returned where there is none.
    """
    kinds = [kind for kind in type(base).__mro__ if "__getitem__" in vars(kind) or name in vars(kind)]
    return getattr(base, name) if kinds and name in vars(kinds[0]) else None


def _known_targets(base: Any) -> Tensor | None:
    """Return the targets that a data set gives all at once, if it does."""
    for name in ("targets", "labels"):
        values = getattr(base, name, None)
        if isinstance(values, (list, tuple, np.ndarray, Tensor)) and len(values) == len(base):
            with suppress(TypeError, ValueError):  # names of files, as torchvision's sets of boxes and masks have
                return torch.as_tensor(values)
    return None


def _infer(base: Any, targets: Tensor | None, named: Callable[[int], Any]) -> DataInfo:
    """Find out what a data set is from its first sample, its targets and its attribute `classes`."""
    sample = read_sample(base, 0)
    mark = fingerprint([type(base).__qualname__, len(base), targets])
    classes = getattr(base, "classes", ())  # their names, or how many there are
    names = tuple(map(str, range(classes) if isinstance(classes, int) else classes))
    if not (isinstance(sample, (tuple, list)) and len(sample) == 2 and isinstance(sample[0], (Tensor, np.ndarray))):
        return DataInfo("custom", (), len(names), names, fingerprint=mark)
    shape = tuple(sample[0].shape)
    given = sample[1]
    is_nested = isinstance(given, (list, tuple)) and not all(isinstance(item, (int, float)) for item in given)
    if is_nested or not isinstance(given, (Tensor, np.ndarray, np.generic, int, float, list, tuple)):
        return DataInfo("custom", shape, len(names), names, fingerprint=mark)
    target = torch.as_tensor(given)
    if target.is_floating_point():
        return DataInfo("regression", shape, target.numel(), fingerprint=mark)
    if target.dim() and not is_dense(shape, target.shape):
        return DataInfo("custom", shape, len(names), names, fingerprint=mark)
    ignored = getattr(base, "ignore_index", None)
    if not names:
        names = tuple(map(str, range(_count(base, ignored) if targets is None else count_classes(targets, named))))
    task = "segmentation" if target.dim() else "multiclass"
    return DataInfo(task, shape, len(names), names, fingerprint=mark, ignore_index=ignored)


def _count(base: Any, ignored: int | None) -> int:
    """Read the targets of all samples, where these are not too many, and return the number of classes."""
    if len(base) > _SCAN_LIMIT:
        what = f"the number of classes is unknown, and {len(base)} samples are too many to read for it"
        fix = "give the data set an attribute `info` (lightkit.data.DataInfo), `targets` or `classes`"
        raise UserError(what, argument="", fix=fix)
    found = (torch.as_tensor(read_sample(base, row)[1]) for row in range(len(base)))
    return 1 + max(int(target.masked_fill(target == (-1 if ignored is None else ignored), 0).max()) for target in found)


def read_sample(base: Any, row: int, read: Callable[[int], Any] | None = None) -> Any:
    """Read a sample of a data set.

    Args:
        base: The data set.
        row: Its row.
        read: Reads the row; None takes `base[row]`.

    Raises:
        UserError: The data set raises; its line is named, the error is the `__cause__`.
    """
    try:
        return base[row] if read is None else read(row)
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or is_dead_worker(error):
            raise
        what = f"sample {row} of the data set could not be read: {in_short(error)}"
        facts: dict[str, Any] = {"origin": user_frame(error), "fix": "LIGHTKIT_DEBUG=1 shows the whole traceback"}
        raise UserError(what, argument="", family="data-unreadable", **facts) from error


def seed_generators(key: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch, from which code of the user's draws, for one sample."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Put the generators of Python, NumPy and PyTorch back afterwards as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
