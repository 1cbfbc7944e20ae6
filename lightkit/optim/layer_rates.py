"""Rates that differ from layer to layer: layer-wise decay and discriminative slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightkit.common.errors import UserError, keys_under
from lightkit.optim.layers import depth_of
from lightkit.optim.rules import check_rate
from lightkit.optim.settings import Settings


@dataclass(frozen=True)
class LayerRates:
    """A factor on the rate of each layer; none without a setting.

    Raises:
        UserError: A factor is out of its range, or both settings are given.
    """

    decay: float | None
    """Factor per layer counted from the output."""
    slices: tuple[float, ...]
    """Factor for each of as many consecutive slices of the layers, from input to output."""
    decay_key: str = field(kw_only=True)
    """Configuration key of `decay`."""
    slices_key: str = field(kw_only=True)
    """Configuration key of `slices`."""

    def __post_init__(self) -> None:
        if self.decay is not None and not 0.0 < self.decay <= 1.0:
            expected = "above 0, at most 1"
            raise UserError("not a factor per layer", key=self.decay_key, expected=expected, received=self.decay)
        if self.decay is not None and self.slices:
            raise UserError(
                f"the rates of the layers are given twice, here and in {self.slices_key}",
                key=self.decay_key,
                fix=f"set {self.decay_key}=null or {self.slices_key}=[]",
            )
        for index, factor in enumerate(self.slices):
            with keys_under(f"{self.slices_key}[{index}]"):
                check_rate(factor, "")

    @property
    def asked(self) -> bool:
        """Whether there is anything to apply."""
        return self.decay is not None or bool(self.slices)

    def applied(
        self, settings: Mapping[str, Settings], depths: Mapping[str, int], aliases: Mapping[str, str]
    ) -> dict[str, Settings]:
        """Return the settings with the factor of each parameter's layer.

        Args:
            settings: Settings by parameter name.
            depths: Layer by parameter name, of the whole model.
            aliases: The name that `depths` has for some parameters.

        Raises:
            UserError: There are more slices than layers.
        """
        factors = self._factors(1 + max(depths.values()))
        key = self.slices_key if self.slices else self.decay_key
        found = {name: factors[depth_of(depths, aliases.get(name, name))] for name in settings}
        return {name: base.in_layer(*found[name], key=key) for name, base in settings.items()}

    def _factors(self, count: int) -> list[tuple[str, float]]:
        """Return name and factor for each of `count` layers."""
        if self.decay is not None:
            return [(_numbered("layer", n, count), self.decay ** (count - 1 - n)) for n in range(count)]
        pieces = len(self.slices)
        if pieces > count:
            raise UserError(
                "more slices than layers",
                key=self.slices_key,
                expected=f"at most {count} slices, one for each layer of the model",
                received=f"{pieces} slices {list(self.slices)}",
            )
        numbers = [layer * pieces // count for layer in range(count)]
        return [(_numbered("slice", n, pieces), self.slices[n]) for n in numbers]


def _numbered(kind: str, number: int, count: int) -> str:
    """Name one of several such that names sort by number: `layer_03` of 12."""
    return f"{kind}_{number:0{len(str(count - 1))}d}"
