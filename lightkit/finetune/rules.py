"""Settings of single parameters that a fine-tuning asks for, each of them asked for once only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames

_SETTINGS = {
    "lr": "the learning rate",
    "lr_scale": "the learning rate",
    "weight_decay": "the weight decay",
    "warmup_steps": "the warm-up",
}
"""Settings of a rule, and what each of them sets, in words."""


def make_rules(
    options: Mapping[str, Any],
    names: NetworkNames,
    *,
    current_names: Mapping[str, str],
    injected: Mapping[str, Sequence[str]],
    lora_b: Collection[str],
    trained: Collection[str],
) -> list[dict[str, Any]]:
    """Return rules over exact names for `lightkit.optim.parameter_groups`: of the head, of LoRA+, and the listed ones.

    Args:
        options: The group `finetune`.
        names: Names of the network before anything was injected.
        current_names: Name before anything was injected → name now.
        injected: Names of what was brought in, by what brought it.
        lora_b: Names of the second matrices of LoRA.
        trained: Names, as they are now, of what trains at some time.

    Raises:
        UserError: A rule matches nothing or only what never trains, or two set the same thing of one parameter.
    """
    head, lora, ratio = options["head"], options["lora"], options["lora"]["lr_ratio"]
    rules = [_rule(f"finetune.{part}", new, {"name": part}) for part, new in injected.items()]
    chosen = {name: head[name] for name in ("lr", "lr_scale", "weight_decay") if head[name] is not None}
    if names.head or chosen:
        own = names.find_parameters(["@head"], argument="head")
        if chosen or {current_names.get(name, name) for name in own} & set(trained):
            rules.append(_rule("finetune.head", own, {"name": "head", **chosen}))
    if ratio is not None and lora["match"]:
        rules.append(_rule("finetune.lora.lr_ratio", lora_b, {"name": "lora_b", "lr_ratio": ratio}))
    for index, entry in enumerate(options["rules"]):
        patterns = [entry["match"]] if isinstance(entry["match"], str) else list(entry["match"])
        name = entry.get("name") or "+".join(pattern.removeprefix("re:").lstrip("@") for pattern in patterns)
        listed = names.find_parameters(patterns, argument=f"rules[{index}].match")
        rules.append(_rule(f"finetune.rules[{index}]", listed, {**entry, "name": name}))
    for rule in rules:
        rule["names"] = [current_names.get(name, name) for name in rule["names"]]
        if not set(rule["names"]) & set(trained):
            raise UserError(
                "the rule is for parameters that never train",
                key=rule["key"],
                received=", ".join(rule["names"][:3]),
                fix="leave it out, or let them train: finetune.train, finetune.schedule",
            )
    _check_exclusive(rules)
    return rules


def _rule(key: str, names: Iterable[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    known = ("name", "match", *_SETTINGS, "lr_ratio", "allow_zero")
    chosen = {name: settings[name] for name in known if settings.get(name) is not None}
    return {"key": key, "names": list(names), **chosen}


def _check_exclusive(rules: Iterable[Mapping[str, Any]]) -> None:
    """Refuse two rules that set the same thing of one parameter."""
    owners: dict[tuple[str, str], str] = {}
    for rule in rules:
        set_by_rule = {what for name, what in _SETTINGS.items() if name in rule}
        for what, name in product(sorted(set_by_rule), rule["names"]):
            other = owners.setdefault((what, name), rule["key"])
            if other != rule["key"]:
                fix = "make one of the patterns narrower, or leave one out"
                keys = f"{other} and {rule['key']}"
                raise UserError(f"two rules set {what} of {name}", key=keys, received=name, fix=fix)
