"""Fine-tuning as the loop sees it: which phase is due, and the modes and gradients that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from lightkit.common.shards import reshard
from lightkit.finetune.phases import Phase


class Auditor(Protocol):
    """Checks whether a phase did what it says: see `lightkit.finetune.audit.audit.FinetuneAudit`."""

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
            release(self.model, self._phase)
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


def hold(model: nn.Module, phase: Phase) -> None:
    """Put what a phase holds in eval mode there, one by one: what is below these modules has a mode of its own."""
    for path in (*phase.frozen_norms, *phase.eval_modules):
        model.get_submodule(path).training = False


def release(model: nn.Module, phase: Phase) -> None:
    """Put what `hold` held back into training mode."""
    for path in (*phase.frozen_norms, *phase.eval_modules):
        model.get_submodule(path).training = True
