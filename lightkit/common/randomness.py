"""Randomness as a function instead of a state.

Every random decision of a run is computed from the run's seed and a name for the occasion (epoch, position,
step). Nothing has to be saved or replayed to go on after an interruption, and neither the batch size nor the number of
workers changes what a sample looks like.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_MASK = (1 << 63) - 1


def mix(*parts: int | str) -> int:
    """Return 63 random-looking bits that depend on nothing but `parts`.

    Example:
        `mix(seed, "order", epoch)` seeds the generator that shuffles an epoch.
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _MASK


class SampleRandom:
    """Random numbers for a batch, one independent stream per sample.

    A counter-based generator (SplitMix64, Steele et al. 2014, https://doi.org/10.1145/2714064.2660195): its numbers
    depend on (key, position of the sample, how many were drawn before), never on its neighbours in the batch.

    Args:
        key: Seed of the occasion, such as `mix(seed, "sample", epoch)`.
        positions: Position of each sample in the epoch, `(B,)` int64, on the device where the numbers are wanted.
    """

    def __init__(self, key: int, positions: torch.Tensor) -> None:
        self.key, self.positions, self._drawn = key, positions, 0

    def __len__(self) -> int:
        return len(self.positions)

    def bits(self, count: int = 1) -> torch.Tensor:
        """Draw `(B, count)` int64 with 64 random bits each."""
        import torch

        positions: Any = self.positions
        lanes: Any = torch.arange(self._drawn, self._drawn + count, device=positions.device)
        self._drawn += count
        if count * len(positions) < _MANY and positions.device.type == "cpu":
            positions, lanes = positions.numpy(), lanes.numpy()
        stream = splitmix(positions + self.key)
        return torch.as_tensor(splitmix(stream[:, None] + lanes[None, :] * _GOLDEN))

    def uniform(self, count: int = 1, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Draw `(B, count)` float32, uniform in `[low, high)`."""
        import torch

        unit = ((self.bits(count) >> 40) & 0xFFFFFF).to(torch.float32) * (1.0 / (1 << 24))
        return low + (high - low) * unit

    def normal(self, count: int = 1) -> torch.Tensor:
        """Draw `(B, count)` float32, standard normal (Box-Muller)."""
        import torch

        radius = torch.sqrt(-2.0 * torch.log1p(-self.uniform(count)))
        return radius * torch.cos(2.0 * torch.pi * self.uniform(count))

    def integers(self, low: int, high: int, count: int = 1) -> torch.Tensor:
        """Draw `(B, count)` int64, uniform in `[low, high)`; exact while the range is far below 2**24."""
        import torch

        return (low + torch.floor(self.uniform(count) * (high - low))).to(torch.int64)


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MUL1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MUL2 = -7723592293110705685  # 0x94D049BB133111EB
_MANY = 1 << 14
"""So many numbers PyTorch draws, in several threads; fewer are drawn by NumPy, which needs less time to begin."""


def splitmix(value: Any) -> Any:
    """Apply SplitMix64's finaliser on int64 (wrapping); `>>` keeps the sign, so it is masked to be logical.

    Args:
        value: A tensor or an array.
    """
    value = value + _GOLDEN
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _MUL1
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _MUL2
    return value ^ ((value >> 31) & ((1 << 33) - 1))
