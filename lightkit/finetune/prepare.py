"""From the options of a fine-tuning to a changed network and the phases it trains in.

This module knows the group `finetune` of a configuration: what it calls names options without it in errors, and
`prepare` adds the key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from lightkit.common.errors import UserError, keys_under
from lightkit.common.modules import inside, parent_of
from lightkit.common.patterns import Matched
from lightkit.finetune.head import KEY, Head, find_head
from lightkit.finetune.inject import check_patterns, find_targets, inject, resolve_patterns
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.new_head import has_outputs, replace_head
from lightkit.finetune.peft.blocks import attentions, find_blocks
from lightkit.finetune.peft.lora import lora_b_names
from lightkit.finetune.peft.merging import plain_names
from lightkit.finetune.phases import Phase, PhaseStart, gradual_changes, phase_starts, scheduled_changes
from lightkit.finetune.tuning import (
    freeze,
    frozen_modules,
    frozen_norms,
    frozen_stateful_modules,
    norm_parameters,
    with_norms_held_by_model,
)

_SETTINGS = ("lr", "lr_scale", "weight_decay", "warmup_steps")
"""Settings of a rule."""


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
    """Names of parameters without pretrained weights: those of a new head."""
    original_names: dict[str, str] = field(default_factory=dict)
    """Name of a parameter in the network now → before anything was injected, where they differ."""
    depths: dict[str, int] = field(default_factory=dict)
    """Layer of each parameter that was there before, 0 at the input."""
    matched: tuple[Matched, ...] = ()
    """What each pattern of the configuration stands for, by the names before anything was injected."""
    norms_held_by_model: frozenset[str] = frozenset()
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
        """Return the optimizer step at which each parameter first trains."""
        steps: dict[str, int] = {}
        for phase in self.phases:
            for name in phase.trainable:
                steps.setdefault(name, phase.first_step(steps_per_epoch))
        return steps

    def group_labels(self) -> dict[str, str]:
        """Return when each parameter trains that does not always: `from_epoch_3`, `to_step_100`.

        Parameters that train at different times go into different groups of the optimizer, and these are called so.
        """
        labels = {}
        for name in self.trained:
            parts, trained = [], name in self.phases[0].trainable
            for phase in self.phases[1:]:
                if (name in phase.trainable) != trained:
                    trained = not trained
                    parts.append(f"{'from' if trained else 'to'}_{phase.name.replace(' ', '_')}")
            if parts:
                labels[name] = "_".join(parts)
        return labels


@keys_under("finetune")
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
        options: The group `finetune` of a configuration, as plain values, and `rules` of its optimizer.
        outputs: Number of outputs the data asks for; None where there is no such number.
        depths: Gives the layer of each parameter.
        steps_per_epoch: Optimizer steps of an epoch.
        total_steps: Optimizer steps of the run.
        fresh: Names of parameters that did not get pretrained weights.
        head: The output layer; None looks for it without running the network.

    Raises:
        UserError: A pattern matches nothing, parts contradict each other, or nothing would train.
    """
    with keys_under("finetune.head"):
        head = head or find_head(model, options["head"]["name"])
        new = _replace_head(model, head, options["head"], outputs)
    groups = {"@attention": attentions(model), "@blocks": find_blocks(model)}
    path, beside = (head.path, head.beside) if head else (None, ())
    names = NetworkNames(model, head=path, beside=beside, groups=groups)
    check_patterns(names, options)
    layers = _with_head_as_one(depths(model), head)
    plain_modules = frozenset(path for path, _ in model.named_modules() if path)
    frozen = _frozen_at_start(model, names, options)
    targets = find_targets(names, options)
    injected = inject(model, targets, options)
    names.injected = [name for part in injected.values() for name in part]
    current_names = {before: now for now, before in plain_names(model).items()}
    pool = [name for name in names.aliases if name in frozen]
    changes = scheduled_changes(options["schedule"], names, total_steps=total_steps)
    changes += gradual_changes(options["gradual"], pool, layers, total_steps=total_steps)
    trained = [name for name in (*names.aliases, *names.injected) if name not in frozen]
    configured = [
        _make_phase(model, start, names, options, current_names=current_names, plain_modules=plain_modules)
        for start in phase_starts(trained, changes, steps_per_epoch=steps_per_epoch, total_steps=total_steps)
    ]
    phases = tuple(with_norms_held_by_model(model, phase) for phase in configured)
    freeze(model, phases[0])
    prepared = Prepared(
        phases=phases,
        head=head,
        replaced=bool(new),
        injected=tuple(names.injected),
        fresh=frozenset(current_names.get(name, name) for name in (*new, *fresh)),
        original_names={now: before for before, now in current_names.items() if before != now},
        depths=layers,
        matched=tuple(resolve_patterns(names, options, targets)),
        norms_held_by_model=frozenset().union(
            *(phase.frozen_norms - own.frozen_norms for phase, own in zip(phases, configured))
        ),
    )
    _check_fresh_trains(prepared, names)
    rules = make_rules(
        options,
        names,
        current_names=current_names,
        injected=injected,
        lora_b=lora_b_names(model),
        trained=prepared.trained,
    )
    return replace(prepared, rules=tuple(rules))


def _with_head_as_one(depths: dict[str, int], head: Head | None) -> dict[str, int]:
    """Give all layers that make the outputs the depth of the last of them, and close the gaps."""
    if head is None or not head.beside:
        return depths
    own = {name for name in depths if any(inside(name, part) for part in head.parts)}
    last = max((depths[name] for name in own), default=0)
    joined = {name: last if name in own else depth for name, depth in depths.items()}
    numbers = {depth: number for number, depth in enumerate(sorted({*joined.values()}))}
    return {name: numbers[depth] for name, depth in joined.items()}


def _replace_head(model: nn.Module, head: Head | None, options: Mapping[str, Any], outputs: int | None) -> list[str]:
    """Replace the output layer where the options ask for it, and return the names of the new one's parameters."""
    wanted = options["replace"]
    if wanted == "always" and head is None:
        what = "there is no output layer that can be found"
        raise UserError(what, argument="replace", received=wanted, fix=f"name it: {KEY}=PATH")
    if wanted == "always" and outputs is None:
        what = "the data do not tell a number of outputs for a new output layer"
        raise UserError(what, argument="replace", received=wanted, fix="finetune.head.replace=never")
    if head is None or outputs is None or wanted == "never":
        return []
    if wanted == "auto" and has_outputs(model, head, outputs):
        return []
    replaced = replace_head(model, head, outputs, init=options["init"])
    return [f"{path}.{name}" for path in replaced for name, _ in model.get_submodule(path).named_parameters()]


def _frozen_at_start(model: nn.Module, names: NetworkNames, options: Mapping[str, Any]) -> set[str]:
    """Return the names of the parameters that do not train from the start."""
    names.check_ties(options["freeze"], options["train"], keys=("finetune.freeze", "finetune.train"))
    frozen = set(names.find_parameters(options["freeze"], argument="freeze"))
    frozen -= set(names.find_parameters(options["train"], argument="train"))
    return frozen - norm_parameters(model, frozen, names) if options["bn"] == "train" else frozen


def _make_phase(
    model: nn.Module,
    start: PhaseStart,
    names: NetworkNames,
    options: Mapping[str, Any],
    *,
    current_names: Mapping[str, str],
    plain_modules: frozenset[str],
) -> Phase:
    moment, trained = start
    trainable, bn = frozenset(current_names.get(name, name) for name in trained), options["bn"]
    in_eval = frozen_stateful_modules(model, trained, names, trainable=trainable, bn=bn)
    if options["dropout"] == "off":  # all of frozen parts, but for norms and for what was injected
        in_eval |= (frozen_modules(model, trained, names) & plain_modules) - names.norms
    return Phase(
        trainable=trainable,
        epoch=moment.get("epoch"),
        step=moment.get("step"),
        frozen_norms=frozen_norms(model, trained, names, bn=bn),
        eval_modules=in_eval,
    )


def _check_fresh_trains(prepared: Prepared, names: NetworkNames) -> None:
    """Refuse parameters without pretrained weights that never train."""
    idle = sorted(prepared.fresh - prepared.trained)
    if not idle:
        return
    original = [prepared.original_names.get(name, name) for name in idle]
    of_head = names.match_parameters("@head", argument="train") if prepared.head else set()
    wanted = ["@head"] if of_head >= set(original) else sorted({parent_of(name) or name for name in original})
    raise UserError(
        "parameters without pretrained weights never train",
        argument="freeze",
        received=", ".join(idle[:5]),
        expected=f"all of them to train; the output layer is {prepared.head.describe()}" if prepared.head else None,
        fix=f"let them train: finetune.train=[{','.join(wanted)}]",
    )


def make_rules(
    options: Mapping[str, Any],
    names: NetworkNames,
    *,
    current_names: Mapping[str, str],
    injected: Mapping[str, Sequence[str]],
    lora_b: Collection[str],
    trained: Collection[str],
) -> list[dict[str, Any]]:
    """Return rules over exact names for `lightkit.optim.parameter_groups`: of the head, of LoRA+, then the listed ones.

    Args:
        options: The group `finetune`, and `rules` of the optimizer.
        names: Names of the network before anything was injected.
        current_names: Name before anything was injected → name now.
        injected: Names of what was brought in, by what brought it.
        lora_b: Names of the second matrices of LoRA.
        trained: Names, as they are now, of what trains at some time.

    Raises:
        UserError: A rule matches nothing or only what never trains.
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
    if options["body"]["lr_scale"] is not None:
        own = names.find_parameters(["@body"], argument="body")
        rules.append(_rule("finetune.body", own, {"name": "body", **options["body"]}))
    for index, entry in enumerate(options["rules"] or ()):
        patterns = [entry["match"]] if isinstance(entry["match"], str) else list(entry["match"])
        with keys_under("optim"):
            listed = names.find_parameters(patterns, argument=f"rules[{index}].match")
        rules.append(_rule(f"optim.rules[{index}]", listed, {**entry, "match": patterns}))
    for rule in rules:
        rule["names"] = [current_names.get(name, name) for name in rule["names"]]
        if not set(rule["names"]) & set(trained):
            what, received = "the rule is for parameters that never train", ", ".join(rule["names"][:3])
            fix = "leave it out, or let them train: finetune.train, finetune.schedule"
            raise UserError(what, key=rule["key"], received=received, fix=fix, family="finetuning")
    return rules


def _rule(key: str, names: Iterable[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    known = ("name", "match", *_SETTINGS, "lr_ratio", "allow_zero")
    chosen = {name: settings[name] for name in known if settings.get(name) is not None}
    return {"key": key, "names": list(names), **chosen}
