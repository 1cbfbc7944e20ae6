"""Decoded samples, kept in shared memory or in the user's cache folder, so that later epochs need not decode them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.data.sources import Counted, SampleData, kept_generators, read_sample, seed_generators
from lightkit.processes.files import FRESH_SECONDS, LOG, Slots, cache_file, file_marks


class KeptSamples(SampleData):
    """A data set whose decoded samples are kept.

    Args:
        source: The data set.
        slots: Where they are kept.
        form: Structure and types of the samples; others are read anew each time.
        note: A line for people.
    """

    def __init__(self, source: SampleData, slots: Slots, form: Any, note: str) -> None:
        self.__dict__ |= {**vars(source), "notes": (*source.notes, note)}
        self.slots, self.form = slots, form

    def __getitem__(self, row: int) -> Any:
        if content := self.slots.read(int(self.numbers[row])):
            return _unpacked(content, self.form)
        sample = self.base[row]
        with suppress(TypeError, ValueError, RuntimeError):
            form, content = _packed(sample)
            if form == self.form:
                self.slots.write(int(self.numbers[row]), content)
        return sample


def keep_samples(source: Any, where: str | None, asked: Any) -> Any:
    """Let a data set keep its decoded samples.

    Args:
        source: What `as_source` has returned.
        where: `ram` keeps them for this process and its loader processes, `disk` for later runs too; None keeps none.
        asked: What the data set was made with, in plain values.

    Raises:
        UserError: Samples cannot be kept, or nobody can tell that a later reading would give the same.
    """
    if where is None:
        return source
    base, rows = getattr(source, "base", source), np.linspace(0, len(source) - 1, 8, dtype=int).tolist()
    try:
        if not isinstance(source, SampleData) or isinstance(base, Counted):
            raise TypeError("they come in whole batches, or from a stream without an index")
        tried, again = ([_read(source, row, seed) for row in rows] for seed in (0, 1))
        if tried != again:
            raise TypeError("random numbers have a part in them, and belong in data.augment")
        sizes = [len(content) for _, content in tried]
        place = os.memfd_create("samples") if where == "ram" else _kept_file(base, asked, tried)
        slots = Slots(place, max(sizes) * (1 if len({*sizes}) == 1 else 4), len(source))
    except OSError as error:
        LOG.warning("data.cache=%s: no samples are kept: %s", where, in_short(error))
        return source
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        what, found = f"samples cannot be kept: {in_short(error)}", f"{where}, for {type(base).__name__}"
        raise UserError(what, key="data.cache", received=found, fix="data.cache=null", family="data-setting") from error
    size = f"{len(source):,} samples take about {len(source) * sum(sizes) / len(sizes) / 2**20:,.0f} MiB"
    return KeptSamples(source, slots, tried[0][0], f"data.cache={where}: {size}")


def _kept_file(base: Any, asked: Any, tried: Any) -> Any:
    """Return the file in the user's cache folder, of a data set and of what it is read from as they are now."""
    if not hasattr(base, "sources"):
        raise TypeError("nobody knows what it is read from (attribute `sources`), which data.cache=ram need not know")
    marks, age = file_marks(own for own in base.sources if isinstance(own, (str, Path)) and Path(own).exists())
    now = [*map(str, base.sources), marks, tried, age < FRESH_SECONDS and os.getpid()]
    return cache_file("samples", [type(base), asked], now)


def _read(source: SampleData, row: int, seed: int) -> tuple[Any, bytes]:
    with kept_generators():
        seed_generators(seed)
        return _packed(read_sample(source.reopened(), row))


def _packed(sample: Any) -> tuple[Any, bytes]:
    """Return structure and types of a sample, and what it holds: numbers as levels where these give the same bits."""
    leaves, structure = tree_flatten(sample)
    tensors = [leaf if isinstance(leaf, Tensor) else torch.as_tensor(np.array(leaf)) for leaf in leaves]
    form = structure, [(type(leaf), tensor.dtype) for leaf, tensor in zip(leaves, tensors)]
    kept = [_levels(tensor) if tensor.dtype == torch.float32 else tensor for tensor in tensors]
    return form, save({f"{at}": own.clone(memory_format=torch.contiguous_format) for at, own in enumerate(kept)})


def _levels(value: Tensor) -> Tensor:
    levels = value.mul(255.0).round_().clamp_(0, 255).to(torch.uint8)
    same = torch.equal(levels.to(torch.float32).div_(255.0).view(torch.int32), value.view(torch.int32))
    return levels if same else value


def _unpacked(content: bytes, form: Any) -> Any:
    found, leaves = load(content), list[Any]()
    for at, (kind, dtype) in enumerate(form[1]):
        value = found[f"{at}"] if found[f"{at}"].dtype == dtype else found[f"{at}"].to(dtype).div_(255.0)
        leaves.append(value if kind is Tensor else value.numpy() if kind is np.ndarray else kind(value.item()))
    return tree_unflatten(leaves, form[0])
