"""From the options of a fine-tuning to a changed network and the phases it trains in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.modules import parent_of
from lightkit.common.patterns import Matched
from lightkit.finetune.head import KEY, Head, find_head
from lightkit.finetune.names import Names
from lightkit.finetune.new_head import gives, replace_head
from lightkit.finetune.patterns import check_patterns, matched
from lightkit.finetune.peft.blocks import blocks
from lightkit.finetune.peft.inject import inject, targets
from lightkit.finetune.peft.lora import lora_b_names
from lightkit.finetune.peft.plain import plain_names
from lightkit.finetune.peft.prefix import attentions
from lightkit.finetune.phases import (
    Moment,
    Phase,
    frozen_paths,
    gradual,
    make_phases,
    norm_parameters,
    resting_norms,
    scheduled,
)
from lightkit.finetune.resting import resting_states, with_held
from lightkit.finetune.rules import make_rules
from lightkit.finetune.tuning import freeze


@dataclass(frozen=True)
class Prepared:
    """A network that is ready for fine-tuning, and how it is to be trained."""

    phases: tuple[Phase, ...]
    """When what trains."""
    head: Head | None
    """The output layer."""
    replaced: bool = False
    """Whether that is a new one."""
    injected: tuple[str, ...] = ()
    """Names of the parameters that LoRA, adapters and prefixes brought in."""
    rules: tuple[dict[str, Any], ...] = ()
    """Settings of parameters by name, for `lightkit.optim.parameter_groups`."""
    fresh: frozenset[str] = frozenset()
    """Names of parameters that start from nothing: a new head."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Name of a parameter in the network now → before anything was injected, where they differ."""
    depths: dict[str, int] = field(default_factory=dict)
    """Layer of each parameter that was there before, 0 at the input."""
    matched: tuple[Matched, ...] = ()
    """What each pattern of the configuration stands for, by the names before anything was injected."""
    held: frozenset[str] = frozenset()
    """Paths of norm layers that would train, and that the network's own `train()` holds in eval mode."""

    @property
    def described_head(self) -> str:
        """The output layer in words."""
        return "none is found" if self.head is None else ("a new " if self.replaced else "") + self.head.describe()

    @property
    def trained(self) -> frozenset[str]:
        """Names of all parameters that train at some time."""
        return frozenset().union(*(phase.trainable for phase in self.phases))

    def first_steps(self, steps_per_epoch: int) -> dict[str, int]:
        """The optimizer step at which each parameter first trains."""
        found: dict[str, int] = {}
        for phase in self.phases:
            for name in phase.trainable:
                found.setdefault(name, phase.first_step(steps_per_epoch))
        return found

    def labels(self) -> dict[str, str]:
        """What tells parameters apart that train at different times: `from_epoch_3`. Those that always do have none."""
        found = {}
        for name in self.trained:
            when = [name in phase.trainable for phase in self.phases]
            if not all(when):
                found[name] = _label(when, self.phases)
        return found


def prepare(
    model: nn.Module,
    options: Mapping[str, Any],
    *,
    outputs: int | None,
    depths: Callable[[nn.Module], dict[str, int]],
    steps_per_epoch: int,
    total_steps: int,
    fresh: Collection[str] = (),
    head: Head | None = None,
) -> Prepared:
    """Change a network as the options of `finetune` ask for, and find out what trains when.

    Args:
        model: The network with its pretrained weights; changed in place.
        options: The group `finetune` of a configuration, as plain values.
        outputs: Number of outputs the data asks for; None where there is no such number.
        depths: Gives the layer of each parameter.
        steps_per_epoch: Optimizer steps of an epoch.
        total_steps: Optimizer steps of the run.
        fresh: Names of parameters that did not get pretrained weights.
        head: The output layer; None looks for it without running the network.

    Raises:
        UserError: A pattern matches nothing, parts contradict each other, or nothing would train.
    """
    head = head or find_head(model, options["head"]["name"])
    new = _new_head(model, head, options["head"], outputs)
    groups = {"@attention": attentions(model), "@blocks": blocks(model)}
    names = Names(model, head=head.path if head else None, beside=head.beside if head else (), groups=groups)
    check_patterns(names, options)
    layers, plain = depths(model), frozenset(path for path, _ in model.named_modules() if path)
    frozen = _frozen(model, names, options)
    where = targets(names, options)
    injected = inject(model, where, options)
    names.tuned = [name for part in injected.values() for name in part]
    live = {before: now for now, before in plain_names(model).items()}
    moments = _moments(names, frozen, layers, options, steps_per_epoch=steps_per_epoch, total_steps=total_steps)
    asked = [_phase(model, moment, names, options, live=live, plain=plain) for moment in moments]
    phases = tuple(with_held(model, phase) for phase in asked)
    freeze(model, phases[0])
    found = Prepared(
        phases=phases,
        held=frozenset().union(*(phase.still - own.still for phase, own in zip(phases, asked))),
        head=head,
        replaced=bool(new),
        injected=tuple(names.tuned),
        fresh=frozenset(live.get(name, name) for name in (*new, *fresh)),
        aliases={own: plain for plain, own in live.items() if plain != own},
        depths=layers,
        matched=tuple(matched(names, options, where)),
    )
    _check_fresh(found, names)
    rules = make_rules(options, names, live=live, injected=injected, lora_b=lora_b_names(model), trained=found.trained)
    return replace(found, rules=tuple(rules))


def _new_head(model: nn.Module, head: Head | None, options: Mapping[str, Any], outputs: int | None) -> list[str]:
    """Names of the parameters of a new output layer; none where the old one stays."""
    wanted, key = options["replace"], "finetune.head.replace"
    if wanted == "always" and head is None:
        fix = f"name it: {KEY}=PATH"
        raise UserError("there is no output layer that can be found", key=key, received=wanted, fix=fix)
    if wanted == "always" and outputs is None:
        what = "the data do not tell a number of outputs for a new output layer"
        raise UserError(what, key=key, received=wanted, fix=f"{key}=never")
    if head is None or outputs is None or wanted == "never":
        return []
    if wanted == "auto" and gives(model, head, outputs):
        return []
    replace_head(model, head, outputs, init=options["init"])
    return [f"{head.path}.{name}" for name, _ in model.get_submodule(head.path).named_parameters()]


def _frozen(model: nn.Module, names: Names, options: Mapping[str, Any]) -> set[str]:
    """Names of what does not train from the start."""
    keys = ("finetune.freeze", "finetune.train")
    names.split_ties(options["freeze"], options["train"], keys=keys)
    frozen = set(names.parameters(options["freeze"], key=keys[0]))
    frozen -= set(names.parameters(options["train"], key=keys[1]))
    return frozen - norm_parameters(model, frozen, names) if options["bn"] == "train" else frozen


def _moments(
    names: Names,
    frozen: Collection[str],
    layers: Mapping[str, int],
    options: Mapping[str, Any],
    *,
    steps_per_epoch: int,
    total_steps: int,
) -> list[Moment]:
    """When something changes, and what trains from then on, by the names before anything was injected."""
    lengths: dict[str, Any] = {"steps_per_epoch": steps_per_epoch, "total_steps": total_steps}
    pool = [name for name in names.aliases if name in frozen]
    changes = [
        *scheduled(options["schedule"], names, total_steps=total_steps),
        *gradual(options["gradual"], pool, layers, **lengths),
    ]
    start = [name for name in (*names.aliases, *names.tuned) if name not in frozen]
    return make_phases(start, changes, **lengths)


def _phase(
    model: nn.Module,
    moment: Moment,
    names: Names,
    options: Mapping[str, Any],
    *,
    live: Mapping[str, str],
    plain: frozenset[str],
) -> Phase:
    begins, trained = moment
    trainable, bn = frozenset(live.get(name, name) for name in trained), options["bn"]
    quiet = _quiet(model, trained, names, plain) if options["dropout"] == "off" else frozenset()
    return Phase(
        trainable=trainable,
        epoch=begins.get("epoch"),
        step=begins.get("step"),
        still=resting_norms(model, trained, names, bn=bn),
        quiet=quiet | resting_states(model, trained, names, trainable=trainable, bn=bn),
    )


def _quiet(model: nn.Module, trained: Collection[str], names: Names, paths: frozenset[str]) -> frozenset[str]:
    """Paths of the modules of frozen parts, but for norms and for what was injected."""
    return (frozen_paths(model, trained, names) & paths) - names.norms


def _label(when: Sequence[bool], phases: Sequence[Phase]) -> str:
    """`from_epoch_3`, `to_step_100`, `from_epoch_1_to_epoch_4`."""
    parts, before = [], False
    for trains, phase in zip(when, phases):
        if trains != before and not (trains and phase is phases[0]):
            parts.append(f"{'from' if trains else 'to'}_{phase.name.replace(' ', '_')}")
        before = trains
    return "_".join(parts)


def _check_fresh(found: Prepared, names: Names) -> None:
    idle = sorted(found.fresh - found.trained)
    if not idle:
        return
    plain = [found.aliases.get(name, name) for name in idle]
    of_head = names.covered("@head", key="finetune.train") if found.head else set()
    more = ["@head"] if of_head >= set(plain) else sorted({parent_of(name) or name for name in plain})
    raise UserError(
        "parameters without pretrained weights never train",
        key="finetune.freeze",
        received=", ".join(idle[:5]),
        expected=f"all of them to train; the output layer is {found.head.describe()}" if found.head else None,
        fix=f"let them train: finetune.train=[{','.join(more)}]",
    )
