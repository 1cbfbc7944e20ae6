"""Decoded samples, kept in shared memory or in the user's cache folder, so that later epochs need not decode them."""

from __future__ import annotations

import logging
import os
import weakref
import zlib
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.data.sources import Counted, SampleData, kept_generators, own_method, read_sample, seed_generators
from lightkit.monitor.host import container_memory, machine_memory
from lightkit.processes.files import FRESH_SECONDS, cache_file, file_marks

_LOG = logging.getLogger(__name__)
_HEAD = 8
"""Bytes before each piece: its size and its checksum; zeros where it is not there yet."""


class Slots:
    """Pieces of bytes by number in one file, which any process reads and writes at any time.

    Each has a place of its own, so that none waits for another; holes in the file take no room. A checksum tells what a
    crash, a full disk or somebody else has left there.

    Args:
        path: The file; or the number of an open one, such as shared memory, which goes with the last process that has
            it open.
        room: Bytes for each piece, beside the head.
        count: Number of pieces.

    Raises:
        OSError: It cannot be opened or written.
    """

    def __init__(self, path: Path | str | int, room: int, count: int) -> None:
        self.path, self.room, self.count, self.full = path, room - room % -_HEAD + _HEAD, count, False
        self.file = FileIO(path, "r+")
        weakref.finalize(self, self.file.close)
        self.file.truncate(self.room * count)

    def __reduce__(self) -> Any:
        link = Path(f"/proc/{os.getpid()}/fd/{self.file.fileno()}")  # the same file, whatever has its name by then
        return Slots, (link if link.exists() else self.path, self.room - _HEAD, self.count)

    def read(self, number: int) -> bytes:
        """Return a piece; nothing where it is not there, or damaged, in which case all of them go.

        Raises:
            OSError: The file cannot be read.
        """
        head = os.pread(self.file.fileno(), _HEAD, number * self.room)
        size = min(int.from_bytes(head[:4], "little"), self.room)
        content = os.pread(self.file.fileno(), size, number * self.room + _HEAD)
        if head == (_head(content) if content else bytes(_HEAD)):
            return content
        _LOG.warning("%s is damaged, and is made again", self.path)
        self.file.truncate(0)
        self.file.truncate(self.room * self.count)
        return b""

    def write(self, number: int, content: bytes) -> None:
        """Keep a piece, unless it is larger than its room; of a full disk, a line tells once."""
        if len(content) + _HEAD <= self.room and not self.full:
            try:
                os.pwrite(self.file.fileno(), content, number * self.room + _HEAD)
                os.pwrite(self.file.fileno(), _head(content), number * self.room)  # last: others may be reading
            except OSError as error:
                _LOG.warning("%s: nothing more is kept there: %s", self.path, error.strerror)
                self.full = True


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


def keep_samples(source: Any, where: str | None, asked: Any, augment: Sequence[Any] = ()) -> Any:
    """Let a data set keep its decoded samples.

    Args:
        source: What `as_source` has returned.
        where: `ram` keeps them for this process and its loader processes, `disk` for later runs too; None keeps none.
        asked: What the data set was made with, in plain values.
        augment: Transforms of the training samples.

    Raises:
        UserError: Samples cannot be kept, or nobody can tell that a later reading would give the same.
    """
    if where is None:
        return source
    base, rows = getattr(source, "base", source), np.linspace(0, len(source) - 1, 8, dtype=int).tolist()
    try:
        if not isinstance(source, SampleData) or isinstance(base, Counted):
            raise TypeError("they come in whole batches, as from memory, or from a stream without an index")
        tried, again = ([_read(source, row, seed) for row in rows] for seed in (0, 1))
        if tried != again:
            raise TypeError("random numbers have a part in them, and belong in data.augment")
        sizes = [len(content) for _, content in tried]
        place = os.memfd_create("samples") if where == "ram" else _kept_file(base, asked, tried)
        slots = Slots(place, max(sizes) * (1 if len({*sizes}) == 1 else 4), len(source))
    except OSError as error:
        _LOG.warning("data.cache=%s: no samples are kept: %s", where, in_short(error))
        return source
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        what, found = f"samples cannot be kept: {error}", f"{where}, for {type(base).__name__}"
        raise UserError(what, key="data.cache", received=found, fix="data.cache=null", family="data-setting") from error
    size = f"{len(source):,} samples take about {(need := len(source) * sum(sizes) / len(sizes)) / 2**20:,.1f} MiB"
    (taken, limit), whole = container_memory() or (0, need), machine_memory()[1] or need
    if where == "ram" and need > (free := min(whole, limit - taken)):
        expected, fix = f"at most {free / 2**20:,.1f} MiB, which are free", "data.cache=disk, or null"
        raise UserError(size, key="data.cache", received=where, expected=expected, fix=fix, family="data-setting")
    if own_method(base, "read_whole") is not None and getattr(next(iter(augment), None), "reads_whole", False):
        size += f"; {type(augment[0]).__name__} reads the files, so that those of training are decoded in each epoch"
    return KeptSamples(source, slots, tried[0][0], f"data.cache={where}: {size}")


def _kept_file(base: Any, asked: Any, tried: Any) -> Any:
    """Return the file in the user's cache folder, of a data set and of what it is read from as they are now."""
    if not hasattr(base, "sources"):
        raise TypeError(
            "the data set does not say what it is read from (attribute `sources`); data.cache=ram works without"
        )
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


def _head(content: bytes) -> bytes:
    return len(content).to_bytes(4, "little") + zlib.crc32(content).to_bytes(4, "little")
