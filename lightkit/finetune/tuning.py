"""Fine-tuning as the loop sees it: which phase is due, and the modes and gradients that go with it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from lightkit.common.modules import has_statistics, inside, kept_modes, parent_of, reshard
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.phases import Phase


class Auditor(Protocol):
    """Checks whether a phase did what it says: see `lightkit.trainer.audit.phases.FinetuneAudit`."""

    def begin(self, phase: Phase, *, epoch: int, step: int) -> None:
        """Begin to watch a phase, before this step."""

    def after_steps(self, step: int) -> None:
        """Check the phase after so many steps of the run."""

    def end(self, step: int) -> None:
        """Check the phase at its end, after so many steps of the run."""

    def table(self) -> list[dict[str, Any]]:
        """Return what was seen of the phases that have ended."""


class NoTuning:
    """The plain case: everything trains from the first step to the last."""

    phase_start = 0
    """Optimizer step before which what trains has changed last."""

    def train(self, network: nn.Module) -> None:
        """Put the network as the loop calls it into training mode."""
        network.train()

    def before_step(self, epoch: int, step: int) -> None:
        """Do what is due before an optimizer step of this epoch."""

    def finish(self, step: int) -> None:
        """End training after so many steps."""


class Tuning(NoTuning):
    """Holds a network to the phases of its fine-tuning.

    Args:
        model: The network without wrappers; its parameters' `requires_grad` and the mode of its modules are changed.
        phases: In their order; the first is there from the start.
        auditor: Checks every phase from beginning to end; None where nobody does.
    """

    def __init__(self, model: nn.Module, phases: Sequence[Phase], *, auditor: Auditor | None = None) -> None:
        self.model, self.phases, self.auditor = model, list(phases), auditor
        self._phase: Phase | None = None
        self.phase_start = 0

    def train(self, network: nn.Module) -> None:
        """Put the network into training mode, but for what the phase holds in eval mode."""
        network.train()
        if self._phase is not None:
            hold(self.model, self._phase)

    def before_step(self, epoch: int, step: int) -> None:
        """Begin the phase that is due at this step, if it is another one.

        Raises:
            UserError: The phase before did not do what it says (see `FinetuneAudit`).
        """
        due = self.phase_at(epoch, step)
        if due is not self._phase:
            if self._phase is not None and self.auditor and step > self.phase_start:
                self.auditor.end(step)
            self._begin(due, epoch, step)
        elif self.auditor:
            self.auditor.after_steps(step)

    def phase_at(self, epoch: int, step: int) -> Phase:
        """Return the phase of a step: the last that has begun."""
        return next(phase for phase in reversed(self.phases) if phase.has_begun(epoch, step))

    def finish(self, step: int) -> None:
        """Check the last phase.

        Raises:
            UserError: It did not do what it says.
        """
        if self._phase is not None and self.auditor:
            self.auditor.end(step)
        self._phase = None

    def _begin(self, phase: Phase, epoch: int, step: int) -> None:
        if self._phase is not None:
            hold(self.model, self._phase, training=True)
        self._phase, self.phase_start = phase, step
        freeze(self.model, phase)
        hold(self.model, phase)
        if self.auditor:
            self.auditor.begin(phase, epoch=epoch, step=step)


def freeze(model: nn.Module, phase: Phase) -> None:
    """Let exactly the parameters of a phase train. What is frozen loses its gradient: optimizers move what has one."""
    reshard(model)
    for name, parameter in model.named_parameters():
        trains = name in phase.trainable
        parameter.requires_grad_(trains)
        if not trains:
            parameter.grad = None


def hold(model: nn.Module, phase: Phase, *, training: bool = False) -> None:
    """Put what a phase holds into eval mode, or back, one by one: what is below these modules has a mode of its own."""
    for path in (*phase.frozen_norms, *phase.eval_modules):
        model.get_submodule(path).training = training


def frozen_modules(model: nn.Module, trained: Collection[str], names: NetworkNames) -> frozenset[str]:
    """Return the paths of the modules in frozen parts.

    A module is frozen when none of the parameters in it trains. One without parameters is what the part around it is.

    Args:
        model: The network.
        trained: Names, as before anything was injected, of the parameters that train.
        names: The names of the network.
    """
    training, with_parameters = set(), set()
    for first, aliases in names.aliases.items():
        parts = [name.split(".")[:-1] for name in aliases]  # `a.b.c` is in ``, `a` and `a.b`
        around = {".".join(path[:count]) for path in parts for count in range(len(path) + 1)}
        with_parameters |= around
        if first in trained:
            training |= around
    paths = set()
    for path, _ in model.named_modules():
        part = path
        while part and part not in with_parameters:
            part = parent_of(part)
        if part not in training and (part or not training):
            paths.add(path)
    return frozenset(paths)


def frozen_norms(model: nn.Module, trained: Collection[str], names: NetworkNames, *, bn: str) -> frozenset[str]:
    """Return the paths of the norm layers with statistics in frozen parts, which are to be held in eval mode.

    One with a weight is frozen when its weight is, so that with BitFit (https://arxiv.org/abs/2106.10199) only biases
    change: statistics that go on would change more than these.

    Args:
        model: The network.
        trained: Names, as before anything was injected, of the parameters that train.
        names: The names of the network.
        bn: `frozen` holds them; with `stats` and `train` their statistics go on.
    """
    if bn != "frozen":
        return frozenset()
    frozen = frozen_modules(model, trained, names)
    first_names = {alias: name for name, aliases in names.aliases.items() for alias in aliases}
    paths = set()
    for path, module in model.named_modules():
        weight = first_names.get(f"{path}.weight".lstrip("."))
        if has_statistics(module) and (path in frozen if weight is None else weight not in trained):
            paths.add(path)
    return frozenset(paths)


def frozen_stateful_modules(
    model: nn.Module, trained: Collection[str], names: NetworkNames, *, trainable: frozenset[str], bn: str
) -> frozenset[str]:
    """Return the paths of other modules than norm layers in frozen parts that are held in eval mode for their buffers.

    In train mode spectral norm updates its vectors with every step, and a layer of one's own may gather statistics, so
    that a frozen layer would not stay what it is. As for norm layers, one with a weight is frozen when its weight is.

    Args:
        model: The network.
        trained: Names, as before anything was injected, of the parameters that train.
        names: The names of the network.
        trainable: Names, as they are now, of the parameters that train.
        bn: `frozen` holds them; with `stats` and `train` they go on.
    """
    if bn != "frozen":
        return frozenset()
    frozen, paths = frozen_modules(model, trained, names), set()
    for path, module in model.named_modules():
        if path and has_state(module) and not has_statistics(module):
            own = [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
            weights = [name for name in own if not name.endswith("bias")] or own
            if path in frozen if not weights else trainable.isdisjoint(weights):
                paths.add(path)
    return frozenset(paths)


def has_state(module: nn.Module) -> bool:
    """Tell whether a module has numbers of its own that change in train mode, as far as its code tells.

    One that drops out values by itself is left alone, as eval mode would end that too.
    """
    own = {name for name, buffer in module.named_buffers(recurse=False) if buffer.is_floating_point()}
    if not own or any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()):
        return bool(own)
    used = {
        name
        for kind in type(module).__mro__
        for function in vars(kind).values()
        for name in getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ())
    }
    drops = any("dropout" in name or name == "scaled_dot_product_attention" for name in used)
    return "training" in used and not own.isdisjoint(used) and not drops


def norms_held_by_model(model: nn.Module) -> frozenset[str]:
    """Return the paths of the norm layers with statistics that the network's own `train()` leaves in eval mode.

    Networks for detection and segmentation often do that in a `train` of their own. The modes stay as they are.
    """
    with kept_modes(model):
        model.train()
        held = [path for path, module in model.named_modules() if has_statistics(module) and not module.training]
    return frozenset(held)


def with_norms_held_by_model(model: nn.Module, phase: Phase) -> Phase:
    """Return a phase in which the norm layers that the network itself holds in eval mode are frozen too.

    Which ones these are may depend on what needs a gradient: the parameters are left as the phase has them.
    """
    freeze(model, phase)
    return replace(phase, frozen_norms=phase.frozen_norms | norms_held_by_model(model))


def norm_parameters(model: nn.Module, within: Collection[str], names: NetworkNames) -> set[str]:
    """Return the names, out of `within`, of the parameters of norm layers that keep statistics."""
    paths = [path for path, module in model.named_modules() if has_statistics(module)]
    return {
        name for name in within if any(inside(alias, path) for alias in names.aliases.get(name, ()) for path in paths)
    }
