"""What happens when a loss is no longer finite: stop, skip the step, or go back and try with lower rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import NOT_FINITE, UserError
from lightkit.common.modules import everywhere, hooked, mapped, put_back, tensors
from lightkit.common.text import counted
from lightkit.trainer.callbacks import Callback
from lightkit.trainer.learner import Learner

KEPT = "trainer.nonfinite"
"""Name of the kept states among the callbacks; with its dot it can be nobody else's."""


_TOGETHER = 64
"""Losses that are added up at once: giving a GPU one addition a step takes as long as giving it a small layer."""
_IN_VAIN = 3
"""Times a run goes back and comes to the same step again: lower rates do not help there."""


class RollBack(Exception):
    """Training has to go on from an earlier step."""


class Guard:
    """The plain case: a loss that is not finite ends the run before it reaches the weights.

    On the CPU every loss is looked at. On a GPU looking means waiting, so there the losses are added up and the sum is
    looked at when a value is logged anyway, and before anything is saved: a bad loss is noticed a few steps later, but
    never gets into a checkpoint.

    Args:
        device: Where losses are computed.
        eager: Look at every loss on a GPU too.
        agree: Tells, of several processes that train together, whether all of them find it fine. To ask means to wait
            for them, so without `eager` losses are looked at as on a GPU.
    """

    fix = "lower optim.lr, trainer.clip_norm=1.0, or trainer.nonfinite.action=skip or rollback"
    """What to try once this way has come to its end."""

    def __init__(
        self, device: torch.device, *, eager: bool = False, agree: Callable[[bool], bool] | None = None
    ) -> None:
        waits = device.type != "cpu" or agree is not None
        self._losses: list[Tensor] | None = [] if waits and not eager else None
        self._agree = agree or bool

    def passes(self, loss: Tensor) -> bool:
        """Tell whether training may go on with this loss, as far as can be said without waiting."""
        if self._losses is None:
            return self._agree(math.isfinite(loss.item()))
        self._losses.append(loss.detach().reshape(()))  # of shape (1,) too, as `item` takes it
        if len(self._losses) == _TOGETHER:
            self._losses = [_zero_or_nan(self._losses)]
        return True

    def losses_finite(self) -> bool:
        """Tell whether all losses since the last call were finite; waits for the device."""
        if self._losses is None:
            return True
        losses, self._losses = self._losses, []
        return self._agree(not losses or math.isfinite(_zero_or_nan(losses).item()))

    def on_step(self, learner: Learner) -> None:
        """At every step boundary."""

    def refuse(self, learner: Learner, batch: Any, position: int | None) -> None:
        """Decide what to do about a bad loss; returning means that the optimizer step is left out.

        Args:
            learner: What is trained.
            batch: The batch on the device; None when it is no longer known which it was.
            position: Position of the batch's first sample in its epoch.

        Raises:
            UserError: The run ends, with exit status 3.
        """
        raise self.error(learner, batch, position)

    def check_weights(self, learner: Learner) -> None:
        """Before anything is saved: a finite loss may have had a gradient that was not, which shows one step later.

        Raises:
            UserError: A weight is not finite; the run ends, with exit status 3.
        """
        found = bad_parameter(learner.model)
        if found is not None:
            self.refuse_weights(learner, found)

    def refuse_weights(self, learner: Learner, name: str) -> None:
        """Decide what to do about a weight that is not finite.

        Raises:
            UserError: The run ends, with exit status 3.
        """
        raise self.weights_error(learner, name)

    def roll_back(self, learner: Learner) -> None:
        """Put an older state back; the loop does so after a `RollBack`, which the plain case never raises."""

    def weights_error(self, learner: Learner, name: str, *, after: str = "") -> UserError:
        """The message about a weight that is not finite."""
        state = learner.state
        return UserError(
            f"parameter {name} is no longer finite after step {state.step} (epoch {state.epoch + 1}): the gradient was "
            f"not, although the loss was{after}",
            key="trainer.nonfinite",
            expected="finite weights",
            fix="look for a division, root or logarithm whose argument can be 0; the checkpoints before it are whole",
            exit_code=NOT_FINITE,
        )

    def error(self, learner: Learner, batch: Any, position: int | None, *, after: str = "") -> UserError:
        """The message that names step, batch and tensor."""
        state = learner.state
        where = f"at step {state.step + 1} (epoch {state.epoch + 1}" + (
            f", samples from {position} on)" if position is not None else ") or a few steps before"
        )
        found, fix = ("", None) if batch is None else first_bad(learner, batch, position or 0)
        what, key, expected = (
            f"the loss is no longer finite {where}{found}{after}",
            "trainer.nonfinite",
            "a finite loss",
        )
        return UserError(what, key=key, expected=expected, fix=fix or self.fix, exit_code=NOT_FINITE)


def _zero_or_nan(losses: list[Tensor]) -> Tensor:
    """Return 0 where all losses are finite, else NaN, whatever their number format holds."""
    return torch.stack(losses).mul(0.0).sum()


class SkipGuard(Guard):
    """Leaves out the optimizer step of a bad loss; a GPU is waited for at every step.

    The forward pass of a bad batch has already spoilt the running averages of norm layers: buffers are put back too.

    Args:
        device: Where losses are computed.
        limit: Steps that may be left out in a run.
        tell: Takes a line about each step that is left out.
        agree: See `Guard`.
    """

    fix = (
        "lower optim.lr, trainer.clip_norm=1.0, trainer.nonfinite.action=rollback, or a larger trainer.nonfinite.limit"
    )

    def __init__(
        self,
        device: torch.device,
        *,
        limit: int,
        tell: Callable[[str], None] = lambda line: None,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        super().__init__(device, eager=True, agree=agree)
        self.limit, self._tell = limit, tell
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def on_step(self, learner: Learner) -> None:
        """Keep a copy of the buffers."""
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in learner.model.buffers()]

    def refuse(self, learner: Learner, batch: Any, position: int | None) -> None:
        """Count; end the run past the limit."""
        if learner.state.skipped >= self.limit:
            raise self.error(learner, batch, position, after=f"; after {counted(self.limit, 'skipped step')}")
        put_back(self._buffers)
        learner.state.skipped += 1
        self._tell(f"step {learner.state.step + 1}: the loss is not finite, step skipped")


class Kept(Callback):
    """The states that a run can go back to; being a callback, they are part of its checkpoints."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """The states, as `lightkit.checkpoint.content` gathers them."""
        return {"states": list(self.states)} if self.states else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over those of a checkpoint."""
        self.states = list(state.get("states", []))


class RollbackGuard(Guard):
    """Goes back to a kept state, at least `every` steps old where there is one, and on with lower rates.

    Args:
        device: Where losses are computed.
        limit: Times a run may go back.
        every: Optimizer steps between two states; the last two are kept.
        factor: Factor on all learning rates each time.
        gather: Collects the state of the run but for the kept states; the tensors may be the live ones.
        apply: Puts a state back.
        purge: Makes files and loggers forget what came after the state.
        kept: Holds the states.
        tell: Takes a line about each time that the run goes back.
        agree: See `Guard`.
    """

    fix = (
        "look at the samples that are named; lower optim.lr, trainer.clip_norm=1.0, a smaller "
        "trainer.nonfinite.factor, or a larger trainer.nonfinite.limit"
    )

    def __init__(
        self,
        device: torch.device,
        *,
        limit: int,
        every: int,
        factor: float,
        gather: Callable[[], dict[str, Any]],
        apply: Callable[[dict[str, Any]], None],
        purge: Callable[[], None],
        kept: Kept | None = None,
        tell: Callable[[str], None] = lambda line: None,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        super().__init__(device, agree=agree)
        self.limit, self.every, self.factor = limit, every, factor
        self._gather, self._apply, self._purge = gather, apply, purge
        self._kept, self._tell = kept or Kept(), tell
        self._bad_step, self._in_vain = -1, 0

    def on_step(self, learner: Learner) -> None:
        """Keep a state now and then, and where there is none yet; a resumed run may have that of its first step."""
        states, step = self._kept.states, learner.state.step
        if states and (step % self.every != 0 or states[-1]["state"]["step"] == step):
            return
        if not self.losses_finite():
            self.refuse(learner, None, None)
        self.check_weights(learner)
        self._kept.states = [*states[-1:], copied(self._gather())]

    def refuse(self, learner: Learner, batch: Any, position: int | None) -> None:
        """Order the loop back; end the run past the limit, or where going back leads to the same step each time."""
        if self._has_ended(learner):
            raise self.error(learner, batch, position, after=self._before(learner))
        raise RollBack

    def refuse_weights(self, learner: Learner, name: str) -> None:
        """Order the loop back; end the run past the limit, or where going back leads to the same step each time."""
        if self._has_ended(learner):
            raise self.weights_error(learner, name, after=self._before(learner))
        raise RollBack

    def _has_ended(self, learner: Learner) -> bool:
        """Tell whether there is no going back any more."""
        return learner.state.rollbacks >= self.limit or self._times_here(learner) >= _IN_VAIN or not self._kept.states

    def _times_here(self, learner: Learner) -> int:
        """Return how many times in succession the run went back from this very step."""
        return self._in_vain if learner.state.step + 1 == self._bad_step else 0

    def _before(self, learner: Learner) -> str:
        """Say how often the run has gone back."""
        times, here = learner.state.rollbacks, self._times_here(learner)
        said = f"; went back {times} time{'s' * (times != 1)} before"
        in_vain = f", {here} times in succession from this very step: lower learning rates do not help"
        return said + (in_vain if here > 1 else "")

    def roll_back(self, learner: Learner) -> None:
        """Put the older state back, with lower rates."""
        step, times = learner.state.step + 1, learner.state.rollbacks + 1
        self._bad_step, self._in_vain = step, self._times_here(learner) + 1
        self._kept.states = self._kept.states[:1]
        self._apply(copied(self._kept.states[0]))
        learner.state.rollbacks = times
        learner.scheduler.rescale(self.factor**times)
        self._purge()
        back = f"back to step {learner.state.step}, learning rates times {self.factor**times:g}"
        self._tell(f"step {step}: the loss is not finite, {back}")


def copied(value: Any) -> Any:
    """Copy a nesting with tensors of its own."""
    return mapped(lambda tensor: tensor.detach().clone(), value)


_LARGEST = 1e18
"""Numbers whose squares are beyond single precision are larger."""


def first_bad(learner: Learner, batch: Any, position: int) -> tuple[str, str | None]:
    """Name the first tensor that is not finite: a parameter, an input, or an output in the order of computation.

    Returns:
        What is said of it, and what to do about a batch that no training can take.
    """
    for name, parameter in learner.model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"; parameter {name} is not finite", None
    ignored = getattr(learner.criterion, "ignore_index", None)
    for index, tensor in enumerate(tensors(batch)):
        most = tensor.abs().max() if tensor.is_floating_point() and tensor.numel() else torch.zeros(())
        if not most <= _LARGEST:
            if not most.isfinite():
                return f"; tensor {index} of the batch is not finite", None
            held = f"holds {most:g}, whose square is beyond single precision"
            return f"; tensor {index} of the batch {held}", "data.normalize=standard, or other numbers in the data"
        if ignored is not None and not tensor.is_floating_point() and (tensor == ignored).all():
            skip = "another ignore_index; trainer.nonfinite.action=skip leaves such batches out"
            return f"; no target of the batch counts: all are {ignored} (ignore_index)", skip
    return f"; {_first_output(learner, batch, position)}", None


def bad_parameter(model: nn.Module) -> str | None:
    """Name the first trained parameter that is not finite; the whole model costs one wait for the device."""
    trained = [(name, weight.detach()) for name, weight in model.named_parameters() if weight.requires_grad]
    sums = [weight.sum() for _, weight in trained]
    if not trained or bool(torch.isfinite(sum(map(everywhere, sums), start=torch.zeros(())))):
        return None
    return next((name for name, weight in trained if not torch.isfinite(everywhere(weight)).all()), None)


def _first_output(learner: Learner, batch: Any, position: int) -> str:
    bad: list[str] = []

    def look(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if any(t.is_floating_point() and not torch.isfinite(t).all() for t in tensors(output)):
            bad.append(name or "the model")

    learner.engine.seed(learner.state.epoch, position)
    model = learner.model  # compiled code would not call the hooks
    with hooked(model, after=look), torch.no_grad(), learner.engine.autocast():
        learner.task.step(model, batch, learner.criterion)
    return f"the output of {bad[0]} is the first that is not finite" if bad else "the model's outputs are finite"
