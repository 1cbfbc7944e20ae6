"""The checksums of the records of event files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

_MOST_BYTES = 1 << 20
"""What many parts may take together, each as much as the longest."""


def checksums(parts: Sequence[bytes]) -> list[bytes]:
    """Compute masked CRC-32C of parts of four bytes and more at once; TensorBoard takes one byte after the other."""
    if len(parts) > 1 and len(parts) * max(map(len, parts)) > _MOST_BYTES:
        order = sorted(range(len(parts)), key=lambda place: len(parts[place]))
        pieces = order[: len(parts) // 2], order[len(parts) // 2 :]
        found = [one for piece in pieces for one in checksums([parts[place] for place in piece])]
        return [one for _, one in sorted(zip(order, found))]
    size, power = 4 << ((max(map(len, parts)) - 1) // 4).bit_length(), 2
    begun = [(~int.from_bytes(own[:4], "little") & 0xFFFFFFFF).to_bytes(4, "little") + own[4:] for own in parts]
    words: Any = np.frombuffer(b"".join(own.rjust(size, b"\0") for own in begun), "<u4").reshape(len(parts), -1)
    while words.shape[1] > 1:  # every other word goes into the one after it, until one is left
        words, power = _followed(words[:, ::2], power) ^ words[:, 1::2], power + 1
    sums = ~_followed(words[:, 0], 2)
    return [struct.pack("<I", (own >> 15 | own << 17) + 0xA282EAD8 & 0xFFFFFFFF) for own in sums.tolist()]


def _followed(sums: Any, power: int) -> Any:
    """Return what checksums become when 2 ** power bytes of zeros follow."""
    places = sums.copy().view("u1").reshape(*sums.shape, 4)
    found = [table.take(places[..., place]) for place, table in enumerate(_tables(power))]
    return found[0] ^ found[1] ^ found[2] ^ found[3]


@cache
def _tables(power: int) -> list[Any]:
    """Return what each value of each of the four bytes of a checksum becomes then, the others being zero."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import CRC_TABLE

    if power:
        return [_followed(table, power - 1) for table in _tables(power - 1)]
    values = np.arange(256, dtype="<u4")
    return [np.array(CRC_TABLE, "<u4"), values, values << 8, values << 16]
