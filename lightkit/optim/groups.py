"""Parameter groups from rules over parameter names.

Every parameter is in exactly one group. What a group is set to is composed attribute by attribute, the later winning:
the optimizer's own `lr` and `weight_decay`, then `no_decay`, then `layer_decay`, then each rule in order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.patterns import matcher
from lightkit.optim.layers import layer_depths, without_decay

_FIELDS = ("match", "name", "lr", "lr_scale", "weight_decay")


@dataclass(frozen=True)
class _Rule:
    """A checked rule."""

    patterns: tuple[str, ...]
    name: str
    lr: float | None = None
    lr_scale: float | None = None
    weight_decay: float | None = None


@dataclass(frozen=True)
class _Settings:
    """What one parameter is trained with, and the parts of its group's name."""

    base: float | None
    weight_decay: float | None
    lr: float | None = None
    scale: float = 1.0
    layer_scale: float = 1.0
    layer: str = ""
    rules: tuple[str, ...] = ()
    decay: str = ""

    @property
    def rate(self) -> float | None:
        """A rule's `lr` as it stands, else the optimizer's with its factors."""
        if self.lr is not None or self.base is None:
            return self.lr
        return self.base * self.scale * self.layer_scale

    @property
    def name(self) -> str:
        """Such as `all`, `decay`, `layer_03.no_decay`, `head`."""
        parts = [*([self.layer] if self.layer else []), *(["+".join(self.rules)] if self.rules else [])]
        if not parts:
            return self.decay or "all"
        return ".".join([*parts, *([self.decay] if self.decay == "no_decay" else [])])


def parameter_groups(
    model: nn.Module,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    rules: Sequence[Mapping[str, Any]] = (),
    no_decay: bool = False,
    layer_decay: float | None = None,
    frozen: bool = False,
) -> list[dict[str, Any]]:
    """Sort the parameters of a model into groups for a `torch.optim` optimizer.

    A parameter that two modules share counts once, under its first name; rules may match any of its names.

    Args:
        model: The network.
        lr: Learning rate of parameters no rule speaks of; None leaves it to the optimizer.
        weight_decay: Weight decay of parameters no rule speaks of; None leaves it to the optimizer.
        rules: Mappings with `match` (a pattern or several; see `lightkit.common.patterns`) and any of `name`, `lr`,
            `lr_scale`, `weight_decay`. `lr` is the rate itself, also under layer decay; `lr_scale` is a factor on the
            optimizer's, besides that of the layer.
        no_decay: No weight decay on biases, norm layers and other parameters with one dimension, nor on those the model
            names in `no_weight_decay()` (as timm's models do). Embeddings and positions have two dimensions and decay.
        layer_decay: Factor on the rate per layer counted from the output, above 0 to 1
            (https://arxiv.org/abs/2106.08254); see `layer_depths` for what a layer is.
        frozen: Put parameters that need no gradient now into groups too, so that they can be unfrozen later.

    Returns:
        Groups in the order of their first parameter: `params`, `param_names`, a unique `name`, and `lr` and
        `weight_decay` where known.

    Raises:
        UserError: A rule is not understood or matches nothing, a rate is 0 or below, or there is nothing to train.
    """
    checked = [_rule(rule, index) for index, rule in enumerate(rules)]
    _check_base(lr, weight_decay, layer_decay, checked)
    names = _names(model, frozen)
    settings = {name: _Settings(lr, weight_decay) for name in names}
    if no_decay:
        spared = without_decay(model)
        for name, base in settings.items():
            settings[name] = (
                replace(base, weight_decay=0.0, decay="no_decay") if name in spared else replace(base, decay="decay")
            )
    if layer_decay is not None:
        _apply_layer_decay(settings, model, layer_decay)
    for index, rule in enumerate(checked):
        _apply_rule(settings, rule, names, index)
    return _collect(model, settings)


def _names(model: nn.Module, frozen: bool) -> dict[str, list[str]]:
    """First name → all names of every parameter that gets a group."""
    first: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if frozen or parameter.requires_grad:
            found.setdefault(first.setdefault(id(parameter), name), []).append(name)
    if not found:
        raise UserError("no parameter of the model can be trained", key="optim", fix="unfreeze a part of the model")
    return found


def _rule(rule: Mapping[str, Any], index: int) -> _Rule:
    """The checked form of a rule as it stands in the configuration."""
    key = f"optim.rules[{index}]"
    unknown = [field for field in rule if field not in _FIELDS]
    if unknown:
        raise UserError("unknown setting of a rule", key=key, received=unknown[0], choices=_FIELDS)
    patterns = rule.get("match")
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
    if not patterns:
        raise UserError(
            "a rule needs the names it is for", key=f"{key}.match", expected="a pattern or a list of patterns"
        )
    values = {field: rule.get(field) for field in _FIELDS[2:]}
    if values["lr"] is not None and values["lr_scale"] is not None:
        raise UserError("a rule sets either lr or lr_scale", key=key, received=dict(rule))
    _check_rate(values["lr"], f"{key}.lr")
    _check_rate(values["lr_scale"], f"{key}.lr_scale")
    _check_decay(values["weight_decay"], f"{key}.weight_decay")
    return _Rule(patterns, rule.get("name") or "+".join(map(_readable, patterns)), **values)


def _check_base(
    lr: float | None, weight_decay: float | None, layer_decay: float | None, rules: Sequence[_Rule]
) -> None:
    _check_rate(lr, "optim.lr")
    _check_decay(weight_decay, "optim.weight_decay")
    if layer_decay is not None and not 0.0 < layer_decay <= 1.0:
        expected = "above 0, at most 1"
        raise UserError("not a factor per layer", key="optim.layer_decay", expected=expected, received=layer_decay)
    if lr is None and (layer_decay is not None or any(rule.lr_scale is not None for rule in rules)):
        raise UserError("layer_decay and lr_scale need a learning rate to scale", key="optim.lr", fix="set optim.lr")


def _check_rate(rate: float | None, key: str) -> None:
    if rate is None or (math.isfinite(rate) and rate > 0.0):
        return
    if rate == 0.0:
        fix = (
            "freeze these parameters instead: they would still take memory and time, and norm layers would still change"
        )
        raise UserError("a learning rate of 0 does not train", key=key, received=rate, fix=fix)
    raise UserError("not a learning rate", key=key, expected="a finite number above 0", received=rate)


def _check_decay(decay: float | None, key: str) -> None:
    if decay is not None and not (math.isfinite(decay) and decay >= 0.0):
        raise UserError("not a weight decay", key=key, expected="a finite number, 0 or above", received=decay)


def _readable(pattern: str) -> str:
    """A pattern as part of a group's name, which becomes a TensorBoard tag: `re:^layer[34]` → `layer_34`."""
    return re.sub(r"[^\w.]+", "_", pattern.removeprefix("re:")).strip("._") or "rest"


def _apply_layer_decay(settings: dict[str, _Settings], model: nn.Module, factor: float) -> None:
    depths = layer_depths(model)
    last = max(depths.values())
    for name, base in settings.items():
        layer = f"layer_{depths[name]:0{len(str(last))}d}"
        settings[name] = replace(base, layer=layer, layer_scale=factor ** (last - depths[name]))


def _apply_rule(settings: dict[str, _Settings], rule: _Rule, names: dict[str, list[str]], index: int) -> None:
    hits: dict[str, None] = {}
    for pattern in rule.patterns:
        compiled = matcher(pattern)
        found = [first for first, aliases in names.items() if any(compiled.search(name) for name in aliases)]
        if not found:
            raise _matches_nothing(pattern, names, f"optim.rules[{index}].match")
        hits |= dict.fromkeys(found)
    for name in hits:
        settings[name] = _with_rule(settings[name], rule)


def _matches_nothing(pattern: str, names: dict[str, list[str]], key: str) -> UserError:
    return UserError(
        "the pattern matches no trainable parameter",
        key=key,
        received=pattern,
        choices=[name for aliases in names.values() for name in aliases],
        fix="write a glob over whole names (`layer4.*`), or `re:` and a regular expression; frozen ones are left out",
    )


def _with_rule(base: _Settings, rule: _Rule) -> _Settings:
    changes: dict[str, Any] = {"rules": (*base.rules, rule.name)}
    if rule.lr is not None:
        changes["lr"] = rule.lr
    if rule.lr_scale is not None:
        changes |= {"lr": None, "scale": rule.lr_scale}
    if rule.weight_decay is not None:
        changes |= {"weight_decay": rule.weight_decay, "decay": ""}
    return replace(base, **changes)


def _collect(model: nn.Module, settings: dict[str, _Settings]) -> list[dict[str, Any]]:
    parameters = dict(model.named_parameters())
    groups: dict[tuple[str, float | None, float | None], dict[str, Any]] = {}
    for name, setting in settings.items():
        key = (setting.name, setting.rate, setting.weight_decay)
        if key not in groups:
            groups[key] = _empty(setting, {group["name"] for group in groups.values()})
        groups[key]["params"].append(parameters[name])
        groups[key]["param_names"].append(name)
    return list(groups.values())


def _empty(setting: _Settings, taken: set[str]) -> dict[str, Any]:
    """A group without parameters; two rules may share a name, two groups may not."""
    name, count = setting.name, 2
    while name in taken:
        name, count = f"{setting.name}_{count}", count + 1
    group: dict[str, Any] = {"params": [], "param_names": [], "name": name}
    if setting.rate is not None:
        group["lr"] = setting.rate
    if setting.weight_decay is not None:
        group["weight_decay"] = setting.weight_decay
    return group
