"""Settings of single parameters that a fine-tuning asks for, each of them asked for once only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from lightkit.common.errors import UserError
from lightkit.finetune.names import Names

_SETTINGS = ("lr", "lr_scale", "weight_decay", "warmup_steps")
_CLAIMS = {"lr": "the learning rate", "lr_scale": "the learning rate", "weight_decay": "the weight decay",
           "warmup_steps": "the warm-up"}  # fmt: skip


def make_rules(
    options: Mapping[str, Any],
    names: Names,
    *,
    live: Mapping[str, str],
    injected: Mapping[str, Sequence[str]],
    lora_b: Collection[str],
    trained: Collection[str],
) -> list[dict[str, Any]]:
    """Rules over exact names for `lightkit.optim.parameter_groups`: of the head, of LoRA+, and the listed ones.

    Args:
        options: The group `finetune`.
        names: Names of the network before anything was injected.
        live: Name before → name now.
        injected: Names of what was brought in, by what brought it.
        lora_b: Names of the second matrices of LoRA.
        trained: Names, as they are now, of what trains at some time.

    Raises:
        UserError: A rule matches nothing or only what never trains, or two set the same thing of one parameter.
    """
    head, lora, ratio = options["head"], options["lora"], options["lora"]["lr_ratio"]
    found = [_rule(f"finetune.{part}", new, {"name": part}) for part, new in injected.items()]
    chosen = {name: head[name] for name in ("lr", "lr_scale", "weight_decay") if head[name] is not None}
    if names.head or chosen:
        own = names.parameters(["@head"], key="finetune.head")
        if chosen or {live.get(name, name) for name in own} & set(trained):
            found.append(_rule("finetune.head", own, {"name": "head", **chosen}))
    if ratio is not None and lora["match"]:
        found.append(_rule("finetune.lora.lr_ratio", lora_b, {"name": "lora_b", "lr_ratio": ratio}))
    for index, entry in enumerate(options["rules"]):
        key = f"finetune.rules[{index}]"
        patterns = [entry["match"]] if isinstance(entry["match"], str) else list(entry["match"])
        listed = {**entry, "name": entry.get("name") or "+".join(map(_readable, patterns))}
        found.append(_rule(key, names.parameters(patterns, key=f"{key}.match"), listed))
    for rule in found:
        rule["names"] = [live.get(name, name) for name in rule["names"]]
        _check_trains(rule, trained)
    _check_exclusive(found)
    return found


def _rule(key: str, names: Iterable[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("name", "match", *_SETTINGS, "lr_ratio", "allow_zero")
    return {
        "key": key,
        "names": list(names),
        **{name: settings[name] for name in kept if settings.get(name) is not None},
    }


def _readable(pattern: str) -> str:
    return pattern.removeprefix("re:").lstrip("@")


def _check_trains(rule: Mapping[str, Any], trained: Collection[str]) -> None:
    if not set(rule["names"]) & set(trained):
        raise UserError(
            "the rule is for parameters that never train",
            key=rule["key"],
            received=", ".join(rule["names"][:3]),
            fix="leave it out, or let them train: finetune.train, finetune.schedule",
        )


def _check_exclusive(rules: Iterable[Mapping[str, Any]]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for rule in rules:
        claims = {_CLAIMS[name] for name in _SETTINGS if name in rule}
        for claim, name in product(sorted(claims), rule["names"]):
            other = owners.setdefault((claim, name), rule["key"])
            if other != rule["key"]:
                fix = "make one of the patterns narrower, or leave one out"
                what = f"two rules set {claim} of {name}"
                raise UserError(what, key=f"{other} and {rule['key']}", received=name, fix=fix)
