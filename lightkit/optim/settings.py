"""What one parameter is trained with, as composed from all that speaks of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lightkit.optim.rules import Rule


@dataclass(frozen=True)
class Settings:
    """What one parameter is trained with, and the parts of its group's name; never changed, only replaced."""

    base: float | None
    """The optimizer's rate."""
    weight_decay: float | None
    """Weight decay; None leaves it to the optimizer."""
    label: str = ""
    """First part of the group's name."""
    first_step: int = 0
    """Optimizer step the parameter first trains at."""
    lr: float | None = None
    """Rate that a rule set."""
    scale: float = 1.0
    """Factor that a rule put on the optimizer's rate."""
    ratio: float = 1.0
    """Factor on what all else makes of the rate."""
    layer_scale: float = 1.0
    """Factor of the parameter's layer or slice of layers."""
    layer: str = ""
    """Name of that layer or slice."""
    rules: tuple[str, ...] = ()
    """Names of the rules for this parameter."""
    decay: str = ""
    """`decay` or `no_decay` where the two are told apart."""
    warmup_steps: int = 0
    """Optimizer steps of a warm-up of its own."""
    warmup_key: str = ""
    """Configuration key that has this warm-up."""
    keys: tuple[str, ...] = ("optim",)
    """Configuration keys of everything that took part."""

    @property
    def rate(self) -> float | None:
        """A rule's `lr` as it stands, else the optimizer's with its factors; None leaves it to the optimizer."""
        if self.lr is not None:
            return self.lr * self.ratio
        return None if self.base is None else self.base * self.scale * self.layer_scale * self.ratio

    @property
    def name(self) -> str:
        """Such as `all`, `decay`, `layer_03.no_decay`, `head`."""
        rules = "+".join(rule for rule in self.rules if rule != self.label)
        parts = [part for part in (self.label, self.layer, rules) if part]
        if not parts:
            return self.decay or "all"
        return ".".join([*parts, *([self.decay] if self.decay == "no_decay" else [])])

    @property
    def group(self) -> tuple[Any, ...]:
        """Equal for parameters that share a group."""
        start = self.first_step if self.warmup_steps else 0
        return self.label, self.name, self.rate, self.weight_decay, self.warmup_steps, start

    def told_apart(self, *, spared: bool) -> Settings:
        """Return these settings without weight decay if spared, else with, and with a name that says so."""
        if not spared:
            return replace(self, decay="decay")
        return replace(self, weight_decay=0.0, decay="no_decay", keys=(*self.keys, "optim.no_decay"))

    def in_layer(self, layer: str, factor: float, *, key: str) -> Settings:
        """Return these settings with the factor of a layer."""
        return replace(self, layer=layer, layer_scale=factor, keys=(*self.keys, key))

    def under(self, rule: Rule) -> Settings:
        """Return these settings with what a rule says, which wins over what was said before."""
        changes: dict[str, Any] = {"rules": (*self.rules, rule.name), "keys": (*self.keys, rule.key)}
        if rule.lr is not None:
            changes["lr"] = rule.lr
        if rule.lr_scale is not None:
            changes |= {"lr": None, "scale": rule.lr_scale}
        if rule.lr_ratio is not None:
            changes["ratio"] = rule.lr_ratio
        if rule.weight_decay is not None:
            changes |= {"weight_decay": rule.weight_decay, "decay": ""}
        if rule.warmup_steps is not None:
            changes |= {"warmup_steps": rule.warmup_steps, "warmup_key": f"{rule.key}.warmup_steps"}
        return replace(self, **changes)

    def empty_group(self) -> dict[str, Any]:
        """Make a group without parameters; what the optimizer knows by itself is left out."""
        group: dict[str, Any] = {"params": [], "param_names": [], "name": self.name, "rules": []}
        if self.rate is not None:
            group["lr"] = self.rate
        if self.weight_decay is not None:
            group["weight_decay"] = self.weight_decay
        if self.warmup_steps:
            group |= {"warmup_steps": self.warmup_steps, "first_step": self.first_step, "warmup_key": self.warmup_key}
        return group
