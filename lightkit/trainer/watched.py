"""What a watch reads of a model in training, and what it keeps of that from one look to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.modules import has_statistics, is_shard, part, reshard
from lightkit.finetune.audit.fingerprints import Fingerprints
from lightkit.finetune.audit.tables import format_line
from lightkit.trainer.learner import Learner


def largest(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the largest absolute value of each gradient."""
    return torch._foreach_norm(list(gradients), float("inf")) if gradients else ()


class StepRecord:
    """Counts the steps that an optimizer takes, whoever asks for them; keeps what the gradients of a step were.

    A class of one's own may call the `step` of its base in its own, so calls are counted by how deep they are.

    Args:
        optimizer: It calls its hooks; the numbers of its steps stay the same.
        largest: Computes what is kept of gradients, none of which is empty.
    """

    def __init__(self, optimizer: Optimizer, largest: Callable[[Sequence[Tensor]], Sequence[Tensor]] = largest) -> None:
        for kind in type(optimizer).__mro__:
            # PyTorch lets the methods of a class call hooks when it makes one of that class, not of one below it.
            if "step" in vars(kind) and issubclass(kind, Optimizer) and not getattr(kind.step, "hooked", False):
                kind.__new__(kind)._patch_step_function()
        self.gradients: dict[int, Tensor] | None = None
        """What `largest` made of the gradients of a step, by the `id` of their parameters; None without such a step."""
        self._largest, self._listens = largest, False
        self._depth, self._calls = 0, Counter[int]()
        optimizer.register_step_pre_hook(self._enter)
        optimizer.register_step_post_hook(self._leave)

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return max(self._calls.values(), default=0)

    def listen(self) -> None:
        """Keep the gradients of the next step."""
        self.gradients, self._listens = None, True

    def _enter(self, optimizer: Optimizer, *_call: Any) -> None:
        if self._listens:
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            own = {id(p): _dense(part(p.grad)) for p in parameters}
            filled = {number: gradient for number, gradient in own.items() if gradient.numel()}
            self.gradients, self._listens = dict(zip(filled, self._largest(list(filled.values())))), False
        self._depth += 1
        self._calls[self._depth] += 1

    def _leave(self, *_call: Any) -> None:
        self._depth -= 1


def _dense(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient that an embedding may have left sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


Faults = dict[str, list[str]]
"""What does not hold, by the names of the models that train at once; what all share, or the only one, has no name."""


class WatchedModel:
    """What a watch reads of a learner: the plain case of one model, which has no name.

    `lightkit.ensemble.vectorized.WatchedStack` reads many at once.

    Args:
        learner: The model, and what trains it.
    """

    members: Sequence[str] = ("",)
    """Names of the models."""
    largest = staticmethod(largest)
    """Computes what a look has to know of gradients."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    @property
    def modules(self) -> nn.Module:
        """Return the module whose layers the model is made of."""
        return self.learner.model

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """Return the buffers by name."""
        return dict(self.learner.model.named_buffers())

    def of_member(self, tensors: Mapping[str, Tensor], member: str) -> dict[str, Tensor]:
        """Return what of tensors by name belongs to a model."""
        del member
        return dict(tensors)

    def fingerprints(self, tensors: Mapping[str, Tensor]) -> Any:
        """Compute fingerprints of tensors by name."""
        return Fingerprints(tensors)

    def changed(self, before: Any, now: Any) -> dict[str, set[str]]:
        """Return the names of the tensors of each model that are no longer the same; waits for the device."""
        found = before.changed(now)
        if any(map(is_shard, self.learner.model.parameters())):  # each process sees its own part
            found = set(self.learner.engine.ranks.unite(sorted(found)))
        return {"": found}


class WatchedMoment:
    """What a look keeps for the next one.

    Args:
        seen: The models.
        steps: How many steps the optimizer was asked for, as far as that is known.
    """

    def __init__(self, seen: WatchedModel, steps: int) -> None:
        learner, state = seen.learner, seen.learner.state
        model, optimizer = learner.model, learner.optimizer
        reshard(model)
        self.step, self.rollbacks, self.steps = state.step, state.rollbacks, steps
        overflowed = learner.engine.skipped()
        self.taken = state.step - state.skipped - overflowed
        # An optimizer that gets the loss scale is asked for a step that it does not take.
        asked = getattr(optimizer, "_step_supports_amp_scaling", False)
        self.windows = self.taken + (overflowed if asked else 0)
        parameters, buffers = dict(model.named_parameters()), seen.buffers
        self.trains = {name: parameter.requires_grad for name, parameter in parameters.items()}
        self.held = {name: buffers[name] for name in _statistics(seen.modules) if name in buffers}
        self.prints = seen.fingerprints({**parameters, **self.held})
        names = {id(parameter): name for name, parameter in parameters.items()}
        self.rates = {
            names[id(parameter)]: float(group["lr"])
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in names
        }


def _statistics(modules: nn.Module) -> Iterator[str]:
    """Yield the names of the running statistics of norm layers in eval mode."""
    for path, module in modules.named_modules():
        if has_statistics(module) and not module.training:
            yield from (f"{path}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False))


class EvaluationState:
    """What an evaluation must leave alone."""

    def __init__(self, seen: WatchedModel) -> None:
        model, main = seen.learner.model, seen.learner.engine.ranks.main
        self._seen = seen
        reshard(model)
        # What other processes have as a whole too, such as a buffer, rank 0 overwrites with its own.
        own = {
            name: tensor
            for name, tensor in model.state_dict(keep_vars=True).items()
            if isinstance(tensor, Tensor) and (main or isinstance(tensor, nn.Parameter) or is_shard(tensor))
        }
        parameters = dict(model.named_parameters())
        self.prints = seen.fingerprints(own)
        self.modes = {path: module.training for path, module in seen.modules.named_modules()}
        self.gradients = {name for name, parameter in parameters.items() if parameter.grad is not None}
        self.trains = {name for name, parameter in parameters.items() if parameter.requires_grad}

    def faults(self, now: EvaluationState) -> Faults:
        """List what is not as it was here."""
        modes = [path or "the model" for path, mode in now.modes.items() if self.modes.get(path, mode) != mode]
        left = sorted(now.gradients - self.gradients)
        changed = self._seen.changed(self.prints, now.prints)
        faults = {member: format_line("an evaluation changed", sorted(names)) for member, names in changed.items()}
        faults[""] = [
            *faults.get("", ()),
            *format_line("an evaluation left gradients, which the next step takes:", left),
            *format_line("an evaluation changed what trains:", sorted(now.trains ^ self.trains)),
            *format_line("an evaluation left in another mode:", modes),
        ]
        return faults
