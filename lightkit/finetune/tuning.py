"""Fine-tuning as the loop sees it: which phase is due, and the modes and gradients that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from lightkit.common.shards import reshard
from lightkit.finetune.phases import Phase


class Auditor(Protocol):
    """Who looks whether a phase did what it says: see `lightkit.finetune.audit.audit.Audit`."""

    def begin(self, phase: Phase, *, epoch: int, step: int) -> None:
        """A phase begins, before this step."""

    def after_steps(self, step: int) -> None:
        """So many steps of the run are done."""

    def end(self, step: int) -> None:
        """The phase ends after so many steps of the run."""

    def table(self) -> list[dict[str, Any]]:
        """What was seen of the phases that have ended."""


class NoTuning:
    """The plain case: everything trains from the first step to the last."""

    def train(self, network: nn.Module) -> None:
        """Put the network as the loop calls it into training mode."""
        network.train()

    def before_step(self, epoch: int, step: int) -> None:
        """An optimizer step of this epoch is about to begin."""

    def finish(self, step: int) -> None:
        """Training has ended after so many steps."""


class Tuning(NoTuning):
    """Holds a network to the phases of its fine-tuning.

    Args:
        model: The network without wrappers; its parameters' `requires_grad` and the mode of its modules are changed.
        phases: In their order; the first is there from the start.
        witness: Looks at every phase from beginning to end; None where nobody does.
    """

    def __init__(self, model: nn.Module, phases: Sequence[Phase], *, witness: Auditor | None = None) -> None:
        self.model, self.phases, self.witness = model, list(phases), witness
        self._now: Phase | None = None
        self._watched = 0

    def train(self, network: nn.Module) -> None:
        """Training mode, but for what the phase holds in eval mode."""
        network.train()
        if self._now is not None:
            hold(self.model, self._now)

    def before_step(self, epoch: int, step: int) -> None:
        """Begin the phase that is due at this step, if it is another one.

        Raises:
            UserError: The phase before did not do what it says (see `Audit`).
        """
        due = self.due(epoch, step)
        if due is not self._now:
            if self._now is not None and self.witness and step > self._watched:
                self.witness.end(step)
            self._enter(due, epoch, step)
        elif self.witness:
            self.witness.after_steps(step)

    def due(self, epoch: int, step: int) -> Phase:
        """The phase of a step: the last that has begun."""
        return next(phase for phase in reversed(self.phases) if phase.reached(epoch, step))

    def finish(self, step: int) -> None:
        """Look at the last phase.

        Raises:
            UserError: It did not do what it says.
        """
        if self._now is not None and self.witness:
            self.witness.end(step)
        self._now = None

    def _enter(self, phase: Phase, epoch: int, step: int) -> None:
        if self._now is not None:
            release(self.model, self._now)
        self._now, self._watched = phase, step
        freeze(self.model, phase)
        hold(self.model, phase)
        if self.witness:
            self.witness.begin(phase, epoch=epoch, step=step)


def freeze(model: nn.Module, phase: Phase) -> None:
    """Let exactly the parameters of a phase train. What rests loses its gradient: optimizers move what has one."""
    reshard(model)
    for name, parameter in model.named_parameters():
        trains = name in phase.trainable
        parameter.requires_grad_(trains)
        if not trains:
            parameter.grad = None


def hold(model: nn.Module, phase: Phase) -> None:
    """Put the modules that rest in a phase into eval mode, one by one: what is below them has a mode of its own."""
    for path in (*phase.still, *phase.quiet):
        model.get_submodule(path).training = False


def release(model: nn.Module, phase: Phase) -> None:
    """Put what `hold` held back into training mode."""
    for path in (*phase.still, *phase.quiet):
        model.get_submodule(path).training = True
