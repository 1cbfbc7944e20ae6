"""What a watch reads of a model in training, and what it keeps of that from one look to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lightkit.common.modules import is_shard, reshard
from lightkit.finetune.tables import format_line
from lightkit.trainer.audit.fingerprints import Fingerprints
from lightkit.trainer.audit.gradients import largest
from lightkit.trainer.audit.rules import norm_statistics, own_tensors
from lightkit.trainer.learner import Learner

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
        self.held = {
            name: buffers[name]
            for path, own in norm_statistics(seen.modules).items()
            for name in own
            if name in buffers and not seen.modules.get_submodule(path).training
        }
        self.prints = seen.fingerprints({**parameters, **self.held})
        names = {id(parameter): name for name, parameter in parameters.items()}
        self.rates = {
            names[id(parameter)]: float(group["lr"])
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in names
        }


class EvaluationState:
    """What an evaluation must leave alone."""

    def __init__(self, seen: WatchedModel) -> None:
        model = seen.learner.model
        self._seen = seen
        reshard(model)
        own = own_tensors(model.state_dict(keep_vars=True), seen.learner.engine.ranks)
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
