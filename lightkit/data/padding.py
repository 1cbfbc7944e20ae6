"""Making a batch of samples of unlike lengths.

Shapes: B samples, T the longest of them, `...` further dimensions of an element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from lightkit.common.argument_checks import check_range

IGNORED = -100
"""The target that the losses of PyTorch leave out (their `ignore_index`)."""


class Padded:
    """Pads samples to the longest of their batch, and says which places are real: a `collate_fn`.

    Samples are mappings of arrays, or pairs of such a mapping (or a single array) and a target. The first entry of a
    mapping with a dimension says how long a sample is. What is as long as it in all samples, or of unlike lengths, is
    padded along its first dimension, to `(B, T, ...)`; anything else is stacked. A target is padded where it is as long
    as the input, such as a tag for each word, with what the losses ignore.

    Args:
        values: Entry → what it is padded with; others with 0, and `labels` and targets with -100. The target of a pair
            is named `target`.
        mask: Name of the entry that is made, `(B, T)` int64: 1 where a place is real. None makes none, and samples that
            bring one keep their own.
        lengths: Name of an entry `(B,)` int64 with the lengths of the samples; None makes none.
        pad_to_multiple_of: T is a multiple of this, which is faster on some GPUs.

    Raises:
        UserError: `pad_to_multiple_of` is below 1.
    """

    def __init__(
        self,
        values: Mapping[str, float] | None = None,
        *,
        mask: str | None = "attention_mask",
        lengths: str | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> None:
        check_range("pad_to_multiple_of", pad_to_multiple_of, low=1, what="too small")
        self.values = {"labels": IGNORED, "target": IGNORED, **(values or {})}
        self.mask, self.lengths, self.multiple = mask, lengths, pad_to_multiple_of or 1

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Make the batch of a list of samples: a dict, or a pair of input and target.

        Raises:
            ValueError: The samples are neither mappings nor pairs.
            KeyError: A sample lacks an entry of the first one.
        """
        if isinstance(samples[0], Mapping):
            return self._padded(samples)[0]
        inputs, targets = zip(*samples)
        if isinstance(inputs[0], Mapping):
            batch, sizes = self._padded(inputs)
        else:
            sizes = [len(each) for each in inputs]
            batch = self._column("input", inputs, sizes)
        return batch, self._column("target", targets, sizes)

    def _padded(self, samples: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[int]]:
        """Return the batch of mappings, and the length of each sample."""
        columns = {name: [sample[name] for sample in samples] for name in samples[0]}
        sizes = next(filter(None, map(_sizes, columns.values())), [])
        if self.mask is not None and sizes:
            columns.setdefault(self.mask, [torch.ones(size, dtype=torch.int64) for size in sizes])
        more = {} if self.lengths is None else {self.lengths: torch.tensor(sizes)}
        return {name: self._column(name, column, sizes) for name, column in columns.items()} | more, sizes

    def _column(self, name: str, column: Sequence[Any], sizes: list[int]) -> Any:
        """Pad one entry of all samples where it is a sequence, and stack it otherwise."""
        own = _sizes(column)
        if not own:
            return default_collate(list(column))
        parts = [torch.as_tensor(each) for each in column]
        if own != sizes and len(set(own)) == 1:
            return torch.stack(parts)
        longest = -(-max(own) // self.multiple) * self.multiple
        padded = parts[0].new_full((len(parts), longest, *parts[0].shape[1:]), self.values.get(name, 0))
        for place, part in zip(padded, parts):
            place[: len(part)] = part
        return padded


def _sizes(column: Sequence[Any]) -> list[int]:
    """Return the length of each array or list; none where they are numbers, texts or anything else."""
    dims = [getattr(each, "ndim", int(isinstance(each, (list, tuple)))) for each in column]
    return [len(each) for each in column] if all(dims) else []
