"""Parameter groups from rules over parameter names.

Every parameter is in exactly one group. What a group is set to is composed attribute by attribute, the later winning:
the optimizer's own `lr` and `weight_decay`, then `no_decay`, then `layer_decay` or `slices`, then each rule in order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.modules import parameter_aliases
from lightkit.common.patterns import Matched
from lightkit.optim.layers import LayerRates, layer_depths, without_decay
from lightkit.optim.rules import Settings, check_decay, check_rate, matched, read_rules, targets
from lightkit.optim.several import divided


def parameter_groups(
    model: nn.Module,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    rules: Sequence[Mapping[str, Any]] = (),
    no_decay: bool = False,
    layer_decay: float | None = None,
    slices: Sequence[float] = (),
    slices_key: str = "finetune.slices",
    depths: Mapping[str, int] | None = None,
    names: Collection[str] | None = None,
    labels: Mapping[str, str] | None = None,
    aliases: Mapping[str, str] | None = None,
    first_steps: Mapping[str, int] | None = None,
    parts: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Sort the parameters of a model into groups for a `torch.optim` optimizer.

    A parameter that two modules share counts once, under its first name; rules may match any of its names.

    Args:
        model: The network.
        lr: Learning rate of parameters no rule speaks of; None leaves it to the optimizer.
        weight_decay: Weight decay of parameters no rule speaks of; None leaves it to the optimizer.
        rules: Mappings with `match` (a pattern or several; see `lightkit.common.patterns`) and any of `name`, `lr`,
            `lr_scale`, `weight_decay`, `warmup_steps`. `lr` is the rate itself, also under layer decay; `lr_scale` is a
            factor on the optimizer's, besides that of the layer; either may be 0 beside `allow_zero: true`. A rule
            whose parameters have been found already has them in `names`, its place in the configuration in `key`, and
            may have an `lr_ratio`, a factor on what all other rules make of the rate.
        no_decay: No weight decay on biases, norm layers and other parameters with one dimension, nor on those the model
            names in `no_weight_decay()` (as timm's models do). Embeddings and positions have two dimensions and decay.
        layer_decay: Factor on the rate per layer counted from the output, above 0 to 1
            (https://arxiv.org/abs/2106.08254); see `layer_depths` for what a layer is.
        slices: Factors on the rate from input to output: the layers are cut into as many consecutive slices, of sizes
            that differ by one at most (discriminative fine-tuning, https://arxiv.org/abs/1801.06146).
        slices_key: Configuration key of `slices`.
        depths: Layer of each parameter, where `layer_depths` of the model as it is now would not tell it.
        names: First names of the parameters to put into groups; None takes those that need a gradient now.
        labels: First part of the group's name for some parameters; different labels never share a group.
        aliases: Further name of some parameters, such as the one before something was put into the model. Rules may
            match it, `depths` and `no_weight_decay()` may speak of it.
        first_steps: Optimizer step some parameters first train at, from which their warm-up counts; 0 for all others.
        parts: Settings of several optimizers by name; `lr` and `weight_decay` are theirs then, and so are the groups.

    Returns:
        Groups in the order of their first parameter: `params`, `param_names`, a unique `name`, `rules` (the
        configuration keys that made it), `lr` and `weight_decay` where known, and for a group with a warm-up of its own
        `warmup_steps`, `first_step` and `warmup_key`. `part` names the optimizer, where there are several.

    Raises:
        UserError: A rule is not understood or matches nothing, a rate is 0 or below, or there is nothing to train.
        ValueError: One of `names` is not the first name of a parameter.
    """
    layers = LayerRates(layer_decay, tuple(slices), decay_key="optim.layer_decay", slices_key=slices_key)
    checked = read_rules(rules)
    rates = {f"parts.{name}.lr": part.get("lr") for name, part in parts.items()} if parts else {"lr": lr}
    for argument, rate in rates.items():
        check_rate(rate, argument)
    check_decay(weight_decay, "weight_decay")
    if None in rates.values() and (layers.asked or any(rule.scales for rule in checked)):
        asking = "layer_decay, slices, lr_scale and lr_ratio"
        raise UserError(f"{asking} need a learning rate to scale", argument="lr", fix="set optim.lr")
    aliases, labels, first_steps = aliases or {}, labels or {}, first_steps or {}
    known = _known(model, names, aliases)
    owners = divided(known, parts or {}) if parts else dict.fromkeys(known, "")
    own = {"": {"lr": lr, "weight_decay": weight_decay}, **(parts or {})}
    settings = {
        name: Settings(
            own[part].get("lr"),
            own[part].get("weight_decay"),
            label=".".join(filter(None, (part, labels.get(name)))),
            first_step=first_steps.get(name, 0),
            keys=(f"optim.parts.{part}" if part else "optim",),
        )
        for name, part in owners.items()
    }
    if no_decay:
        spared = without_decay(model, aliases)
        settings = {name: base.told_apart(spared=name in spared) for name, base in settings.items()}
    if layers.asked:
        settings = layers.applied(settings, depths or layer_depths(model), aliases)
    for rule in checked:
        settings |= {name: settings[name].under(rule) for name in targets(rule, known)}
    groups = _as_groups(model, settings)
    return [{**group, "part": owners[group["param_names"][0]]} for group in groups] if parts else groups


def matched_rules(model: nn.Module, rules: Sequence[Mapping[str, Any]]) -> list[Matched]:
    """Find what each pattern of the rules stands for; the arguments are those of `parameter_groups`."""
    known = _known(model, None, {})
    return [found for rule in read_rules(rules) for found in matched(rule, known)]


def _known(model: nn.Module, chosen: Collection[str] | None, aliases: Mapping[str, str]) -> dict[str, list[str]]:
    """Map the first name of every parameter that gets a group to all its names."""
    wanted = None if chosen is None else set(chosen)
    found: dict[str, list[str]] = {}
    for own, names in parameter_aliases(model).items():
        if model.get_parameter(own).requires_grad if wanted is None else own in wanted:
            found[own] = [*dict.fromkeys(each for name in names for each in (name, aliases.get(name, name)))]
    unknown = sorted((wanted or set()) - set(found))
    if unknown:
        raise ValueError(f"not first names of the model's parameters: {', '.join(unknown)}")
    if not found:
        what = "no parameter of the model can be trained"
        raise UserError(what, argument="", fix="unfreeze a part of the model", family="finetuning")
    return found


def _as_groups(model: nn.Module, settings: Mapping[str, Settings]) -> list[dict[str, Any]]:
    """Put parameters of equal settings into one group; two rules may share a name, two groups may not."""
    parameters = dict(model.named_parameters())
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    taken: set[str] = set()
    for name, setting in settings.items():
        if setting.group not in groups:
            free, count = setting.name, 2
            while free in taken:
                free, count = f"{setting.name}_{count}", count + 1
            taken.add(free)
            groups[setting.group] = setting.empty_group() | {"name": free}
        group = groups[setting.group]
        group["params"].append(parameters[name])
        group["param_names"].append(name)
        group["rules"] += [key for key in setting.keys if key not in group["rules"]]
    return list(groups.values())
