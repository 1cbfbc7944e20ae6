"""Rules between the keys of `finetune`, as far as they can be told without the model and its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lightkit.config.labels import check_patterns
from lightkit.config.origins import Key

if TYPE_CHECKING:
    from lightkit.config.check import Report

Node = dict[str, Any]
_RATES = ("lr", "lr_scale")
_SETTINGS = (*_RATES, "weight_decay", "warmup_steps")
_DISTANCES = ("every_epochs", "every_steps", "share")


def finetuning(tree: Node, report: Report) -> None:
    """Report parts of a fine-tuning that are right on their own and wrong together."""
    check_patterns(tree, report)
    node, trainer = _branch(tree, "finetune"), _branch(tree, "trainer")
    for key, settings in _rate_holders(tree):
        _one_rate(settings, key, report)
    for index, rule in _entries(node, "rules"):
        _rule_sets(rule, ("finetune", "rules", index), report)
    _layer_rates(tree, report)
    for index, entry in _entries(node, "schedule"):
        _entry(entry, ("finetune", "schedule", index), _end(trainer), report)
    _gradual(node, _end(trainer), report)
    _parts(node, report)
    _all_frozen(node, report)


def _rate_holders(tree: Node) -> Iterator[tuple[Key, Node]]:
    """Nodes that may set a learning rate, straight or as a factor."""
    for group in ("optim", "finetune"):
        for index, rule in _entries(_branch(tree, group), "rules"):
            yield (group, "rules", index), rule
    yield ("finetune", "head"), _branch(tree, "finetune", "head")


def _one_rate(settings: Node, key: Key, report: Report) -> None:
    if all(settings.get(name) is not None for name in _RATES):
        received = ", ".join(f"{name}: {settings[name]}" for name in _RATES)
        report.add(key, "sets either lr or lr_scale, not both", received=received)


def _rule_sets(rule: Node, key: Key, report: Report) -> None:
    if all(rule.get(name) is None for name in _SETTINGS):
        report.add(key, "the rule sets nothing", expected=f"one or more of {', '.join(_SETTINGS)}")


def _layer_rates(tree: Node, report: Report) -> None:
    """Rates by layer can be given in three ways, of which a run can have one."""
    ways = {
        ("finetune", "layer_decay"): _branch(tree, "finetune").get("layer_decay"),
        ("finetune", "slices"): _branch(tree, "finetune").get("slices"),
        ("optim", "layer_decay"): _branch(tree, "optim").get("layer_decay"),
    }
    given = [key for key, value in ways.items() if value not in (None, [])]
    if len(given) > 1:
        names = [".".join(map(str, key)) for key in given]
        unset = " or ".join(f"{name}={[] if name.endswith('slices') else 'null'}" for name in names)
        report.add(given[0], "the rates of the layers are set twice", received=" and ".join(names), fix=unset)


def _end(trainer: Node) -> tuple[str, int] | None:
    """What a run is measured in, and how many of these it lasts; None where that cannot be told."""
    steps, epochs = trainer.get("steps"), trainer.get("epochs", 20)
    if steps is not None:
        return ("step", steps) if _is_count(steps) else None
    return ("epoch", epochs) if _is_count(epochs) else None


def _entry(entry: Node, key: Key, end: tuple[str, int] | None, report: Report) -> None:
    """One change of the schedule."""
    given = [name for name in ("epoch", "step", "share") if entry.get(name) is not None]
    if len(given) != 1:
        what = "this is to happen at two moments" if given else "this is to happen at no moment"
        report.add(key, what, expected="one of epoch, step and share", received=" and ".join(given) or None)
    changes = {name: entry.get(name) for name in ("unfreeze", "freeze")}
    if not any(changes.values()):
        report.add(key, "nothing begins or stops to train here", expected="patterns in unfreeze or freeze")
    both = _common(changes["unfreeze"], changes["freeze"])
    if both:
        report.add(key, "frozen and unfrozen at once", received=", ".join(both))
    for unit in given:
        _too_late(entry[unit], unit, (*key, unit), end, report)


def _common(one: Any, other: Any) -> list[str]:
    lists = isinstance(one, list) and isinstance(other, list)
    return [item for item in one if isinstance(item, str) and item in other] if lists else []


def _too_late(moment: Any, unit: str, key: Key, end: tuple[str, int] | None, report: Report) -> None:
    if end is None or end[0] != unit or not _is_count(moment) or moment < end[1]:
        return
    last, setting = end[1] - 1, f"trainer.{unit}s"
    fix = f"a longer run ({setting}={moment + 1}), or an earlier {unit}"
    report.add(key, f"this comes after the last {unit}", expected=f"at most {last}", received=moment, fix=fix)


def _gradual(node: Node, end: tuple[str, int] | None, report: Report) -> None:
    gradual, key = _branch(node, "gradual"), ("finetune", "gradual")
    given = [name for name in _DISTANCES if gradual.get(name) is not None]
    if not given:
        return
    if len(given) > 1:
        unset = " or ".join(f"finetune.gradual.{name}=null" for name in given)
        report.add(key, "the distance is given twice", received=" and ".join(given), fix=unset)
    thaws = node.get("freeze") or any(entry.get("freeze") for _, entry in _entries(node, "schedule"))
    if not thaws:
        fix = "finetune.freeze=['*'] finetune.train=[@head]"
        report.add(key, "nothing is frozen that could be unfrozen", expected="patterns in finetune.freeze", fix=fix)
    first, is_shared = gradual.get("first"), given[0] == "share"
    if is_shared and first is not None:
        what = "share spreads the unfreezings from the start of the run on, so there is no first one to set"
        report.add((*key, "first"), what, received=first, fix="finetune.gradual.first=null")
    elif not is_shared:
        place = given[0] if first is None else "first"
        unit = given[0].removeprefix("every_").removesuffix("s")
        _too_late(gradual[place], unit, (*key, place), end, report)


def _parts(node: Node, report: Report) -> None:
    """Parts that want others, or do not go with them."""
    lora, peft = _branch(node, "lora"), _branch(node, "peft")
    if lora.get("ranks") and not lora.get("match"):
        what, fix = "ranks for layers, but no layer gets a LoRA", "finetune=lora, or finetune.lora.match=[PATTERN]"
        report.add(("finetune", "lora", "ranks"), what, fix=fix)
    if peft and lora.get("match"):
        what, fix = "LoRA of our own and peft in one run", "finetune.peft=null or finetune.lora.match=[]"
        report.add(("finetune", "peft"), what, fix=fix)
    if "megatron_core" in peft:
        what = "this names a module to import, which a configuration may not do"
        report.add(("finetune", "peft", "megatron_core"), what, received=peft["megatron_core"])


def _all_frozen(node: Node, report: Report) -> None:
    """Everything frozen in so many words; what patterns with names come to is seen when there is a model."""
    freeze = node.get("freeze")
    is_all = isinstance(freeze, list) and ("*" in freeze or {"@head", "@body"} <= {*map(str, freeze)})
    brings = any(_branch(node, part).get("match") for part in ("lora", "adapter", "prefix")) or node.get("peft")
    gradual = _branch(node, "gradual")
    later = any(gradual.get(name) is not None for name in _DISTANCES)
    later = later or any(entry.get("unfreeze") for _, entry in _entries(node, "schedule"))
    if is_all and not (node.get("train") or brings or later or node.get("bn") == "train"):
        fix = "name what is to train: finetune.train=[@head]"
        report.add(("finetune", "freeze"), "everything is frozen", received=", ".join(map(str, freeze or ())), fix=fix)


def _branch(tree: Node, *key: str) -> Node:
    node: Any = tree
    for part in key:
        node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def _entries(node: Node, name: str) -> Iterator[tuple[int, Node]]:
    entries = node.get(name)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield index, entry


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
