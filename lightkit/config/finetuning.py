"""Rules between the keys of `finetune`, as far as they can be told without the model and its data."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern
from lightkit.config.fields import walk
from lightkit.config.origins import Key, dotted
from lightkit.config.schema import Config
from lightkit.config.schema.base import LABELS, RuleConfig
from lightkit.config.schema.finetune import FinetuneConfig, HeadConfig
from lightkit.config.schema.learning import OptimConfig
from lightkit.config.schema.running import TrainerConfig
from lightkit.config.tree import Report, UnusableError, rules_in

_DISTANCES = ("every_epochs", "every_steps", "share")


def one_rate(optim: OptimConfig, finetune: FinetuneConfig, report: Report) -> None:
    """Refuse a learning rate that is given straight and as a factor."""
    for key, settings in _rate_holders(optim, finetune):
        with suppress(UnusableError):
            if settings.lr is not None and settings.lr_scale is not None:
                received = f"lr: {settings.lr}, lr_scale: {settings.lr_scale}"
                report.add(key, "sets either lr or lr_scale, not both", received=received)


def _rate_holders(optim: OptimConfig, finetune: FinetuneConfig) -> Iterator[tuple[Key, RuleConfig | HeadConfig]]:
    """Yield the nodes that may set a learning rate, with their keys."""
    with suppress(UnusableError):
        yield from ((("optim", "rules", index), rule) for index, rule in enumerate(optim.rules))
    yield ("finetune", "head"), finetune.head


def rates_of_layers(optim: OptimConfig, finetune: FinetuneConfig, report: Report) -> None:
    """Refuse rates by layer in more than one of the three ways in which they can be given."""
    ways: dict[Key, object] = {
        ("finetune", "layer_decay"): finetune.layer_decay,
        ("finetune", "slices"): finetune.slices,
        ("optim", "layer_decay"): optim.layer_decay,
    }
    given = [key for key, value in ways.items() if value not in (None, [])]
    if len(given) > 1:
        unset = " or ".join(f"{dotted(key)}={'[]' if key[-1] == 'slices' else 'null'}" for key in given)
        received = " and ".join(map(dotted, given))
        report.add(given[0], "the rates of the layers are set twice", received=received, fix=unset)


def schedule_of_freezing(finetune: FinetuneConfig, trainer: TrainerConfig, report: Report) -> None:
    """Refuse changes at no moment or at two, changes of nothing, and those that come after the end."""
    for index, entry in enumerate(finetune.schedule):
        key = ("finetune", "schedule", index)
        with suppress(UnusableError):
            moments = {"epoch": entry.epoch, "step": entry.step, "share": entry.share}
            given = [unit for unit, moment in moments.items() if moment is not None]
            if len(given) != 1:
                what = "this is to happen at two moments" if given else "this is to happen at no moment"
                report.add(key, what, expected="one of epoch, step and share", received=" and ".join(given) or None)
            for unit in ("epoch", "step"):
                _check_end(trainer, moments[unit], unit, (*key, unit), report)
        with suppress(UnusableError):
            if not entry.unfreeze and not entry.freeze:
                what, expected = "nothing begins or stops to train here", "patterns in unfreeze or freeze"
                report.add(key, what, expected=expected)
            both = [pattern for pattern in entry.unfreeze if pattern in entry.freeze]
            if both:
                report.add(key, "frozen and unfrozen at once", received=", ".join(both))


def _check_end(trainer: TrainerConfig, moment: float | None, unit: str, key: Key, report: Report) -> None:
    """Refuse a moment that comes after the end of a run, where both are counted in the same unit."""
    counted, length = ("epoch", trainer.epochs) if trainer.steps is None else ("step", trainer.steps)
    if moment is not None and length is not None and counted == unit and moment >= length:
        fix = f"a longer run (trainer.{unit}s={moment + 1}), or an earlier {unit}"
        what, expected = f"this comes after the last {unit}", f"at most {length - 1}"
        report.add(key, what, expected=expected, received=moment, fix=fix)


def gradual_unfreezing(finetune: FinetuneConfig, trainer: TrainerConfig, report: Report) -> None:
    """Refuse a distance that is given twice, nothing to unfreeze, and a first unfreezing that cannot be."""
    gradual, key = finetune.gradual, ("finetune", "gradual")
    given = [name for name in _DISTANCES if getattr(gradual, name) is not None]
    if not given:
        return
    if len(given) > 1:
        unset = " or ".join(f"finetune.gradual.{name}=null" for name in given)
        report.add(key, "the distance is given twice", received=" and ".join(given), fix=unset)
    if not finetune.freeze and not any(entry.freeze for entry in finetune.schedule):
        what, fix = "nothing is frozen that could be unfrozen", "finetune.freeze=['*'] finetune.train=[@head]"
        report.add(key, what, expected="patterns in finetune.freeze", fix=fix)
    if given[0] != "share":
        name = given[0] if gradual.first is None else "first"
        unit = given[0].removeprefix("every_").removesuffix("s")
        _check_end(trainer, getattr(gradual, name), unit, (*key, name), report)
    elif gradual.first is not None:
        what = "share spreads the unfreezings from the start of the run on, so there is no first one to set"
        report.add((*key, "first"), what, received=gradual.first, fix="finetune.gradual.first=null")


def ranks_without_lora(finetune: FinetuneConfig, report: Report) -> None:
    """Refuse ranks where no layer gets a LoRA."""
    if finetune.lora.ranks and not finetune.lora.match:
        what, fix = "ranks for layers, but no layer gets a LoRA", "finetune=lora, or finetune.lora.match=[PATTERN]"
        report.add(("finetune", "lora", "ranks"), what, fix=fix)


def two_loras(finetune: FinetuneConfig, report: Report) -> None:
    """Refuse LoRA of our own and peft in one run."""
    if finetune.peft is not None and finetune.lora.match:
        what, fix = "LoRA of our own and peft in one run", "finetune.peft=null or finetune.lora.match=[]"
        report.add(("finetune", "peft"), what, fix=fix)


def import_of_peft(finetune: FinetuneConfig, report: Report) -> None:
    """Refuse the argument of peft that names a module to import."""
    module = getattr(finetune.peft, "megatron_core", None)
    if module is not None:
        what = "this names a module to import, which a configuration may not do"
        report.add(("finetune", "peft", "megatron_core"), what, received=module, family="target-not-trusted")


def everything_frozen(finetune: FinetuneConfig, report: Report) -> None:
    """Refuse to freeze everything in so many words; what patterns with names come to is seen when there is a model."""
    frozen = finetune.freeze
    if ("*" in frozen or {"@head", "@body"} <= {*frozen}) and not _trains(finetune):
        received, fix = ", ".join(frozen), "name what is to train: finetune.train=[@head]"
        report.add(("finetune", "freeze"), "everything is frozen", received=received, fix=fix, family="finetuning")


def _trains(node: FinetuneConfig) -> bool:
    """Tell whether something trains in a network that is frozen, at once or later."""
    injected = node.lora.match or node.adapter.match or node.prefix.match or node.peft is not None
    gradual = any(getattr(node.gradual, name) is not None for name in _DISTANCES)
    later = gradual or any(entry.unfreeze for entry in node.schedule)
    return bool(node.train or injected or later or node.bn == "train")


FINETUNE_RULES = rules_in(globals())


PatternPlace = tuple[Key, Any, tuple[str, ...]]
"""Where patterns are, what stands there, and which labels there are."""

_NAMES_ONLY = {"device": "name modules: `blocks.*`", "resume": "name keys: `optim.*`"}
"""What to do about a label in a group that knows none."""


def check_patterns(tree: dict[str, Any], report: Report) -> None:
    """Report patterns that cannot be meant: unknown labels, broken expressions, empty text."""
    for key, patterns, labels in pattern_places(tree):
        if patterns == [] and key[-1] == "match" and key[1] == "rules":
            report.add(key, "a rule for nothing", expected="a pattern or a list of patterns", received=patterns)
        listed = enumerate(patterns) if isinstance(patterns, list) else ()
        for place, pattern in [(key, patterns), *(((*key, index), item) for index, item in listed)]:
            if isinstance(pattern, str):  # what is no text is left to the check of types
                _check(pattern, place, labels, report)


def pattern_places(tree: Any) -> Iterator[PatternPlace]:
    """Yield every key that takes patterns, with its value of whatever type and the labels that it may use.

    Args:
        tree: A configuration as plain values, which need not be complete or right.
    """
    for way, field, kind in walk(Config):
        labels: Any = field.metadata.get("patterns")
        for key, value in _values_at(tree, way) if labels is not None else ():
            if typing.get_origin(kind) is dict:
                yield from (((*key, name), name, labels) for name in (value if isinstance(value, dict) else ()))
            else:
                yield key, value, labels


def _values_at(node: Any, way: Key, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield what stands where a way leads, in which `*` is any item of a list; None where there is nothing."""
    if not way:
        yield key, node
    elif way[0] != "*":
        yield from _values_at(node.get(way[0]) if isinstance(node, dict) else None, way[1:], (*key, way[0]))
    else:
        for index, item in enumerate(node if isinstance(node, list) else ()):
            yield from _values_at(item, way[1:], (*key, index))


def _check(pattern: str, key: Key, labels: tuple[str, ...], report: Report) -> None:
    if not pattern.removeprefix("re:").strip():
        what = "an empty pattern matches nothing" if not pattern.strip() else "an empty expression matches everything"
        report.add(key, what, received=pattern, fix="`*` matches everything")
    elif not pattern.startswith("@"):
        try:
            Pattern(pattern)
        except UserError as error:
            report.add(key, error.what, received=pattern)
    elif not labels:
        what = "names only here; labels such as @head are for finetune"
        report.add(key, what, received=pattern, fix=_NAMES_ONLY[str(key[0])])
    elif pattern not in labels:
        what = f"{pattern} stands for parameters, not for layers" if pattern in LABELS else "there is no such label"
        report.add(key, what, received=pattern, choices=labels)
    elif pattern == "@tuned" and key[:2] == ("finetune", "freeze"):
        what = "what LoRA, adapters and prefixes bring in trains from the start"
        report.add(key, what, received=pattern, fix="an entry of finetune.schedule freezes it later")
