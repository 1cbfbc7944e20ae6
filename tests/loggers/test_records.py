"""Checksums of records are those that TensorBoard computes."""

from __future__ import annotations

import random
import struct

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from lightkit.loggers.records import checksums


def test_checksums_are_those_of_tensorboard() -> None:
    draws = random.Random(0)
    parts = [draws.randbytes(size) for size in (*range(4, 40), 63, 64, 65, 500, 4096, 5001)]
    mixed = [*parts[::-1], draws.randbytes(300_000), *parts * 20, draws.randbytes(70_001)]  # more than at once
    for some in (parts, parts[:1], [bytes(8), b"\xff" * 8, *parts[::-1]], mixed):
        assert checksums(some) == [struct.pack("<I", masked_crc32c(part)) for part in some]
