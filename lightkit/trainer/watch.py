"""Whether training does what it says: what trains moves, what is frozen rests, and nothing else touches the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.exit_codes import AUDIT_FAILED
from lightkit.common.modules import has_statistics
from lightkit.common.shards import is_shard, part, reshard
from lightkit.finetune.audit.fingerprints import Fingerprints
from lightkit.finetune.audit.formatting import format_line
from lightkit.trainer.learner import Learner
from lightkit.trainer.step_record import StepRecord, counted_steps

ENOUGH_STEPS = 3
"""Optimizer steps after which what trains must have moved: what begins at zero holds the gradients of others back."""
VISIBLE = 32
"""How many times the resolution of a number a step must be to show: gradients may be clipped, and rates may fall."""
UNREACHED, ZERO, TOO_SMALL, STUCK = range(4)
"""Why a parameter did not move, from what needs least of a gradient to what needs most."""


class NoWatch:
    """The plain case: nobody looks."""

    def on_step(self, learner: Learner) -> None:
        """Look after an optimizer step and all that follows it, where that is due."""

    @contextmanager
    def evaluation(self, learner: Learner) -> Iterator[None]:
        """Look whether an evaluation inside leaves everything as it was, where that is due."""
        del learner
        yield


class Watcher(NoWatch):
    """Looks every so many steps whether all that must hold while a model trains does; changes nothing itself.

    - What trains has moved since the last look, by any bit; what is frozen has not, nor have the statistics of norm
      layers in eval mode.
    - The optimizer has taken one step for each window of batches. Most of PyTorch's count their steps, so all are
      known. Each call in the window before a look is counted too.
    - All processes hold the same weights, where each holds a copy.
    - An evaluation leaves weights, buffers, gradients and modes as they are. The first is looked at, and later ones
      when a look is due.

    A look waits for the device. Between two of them nothing is done, and nothing but a few numbers for each tensor is
    kept. All processes of a run look at the same steps, and come to the same verdict.

    Args:
        every: Optimizer steps between two looks; the last step of a run is looked at too.
        action: `warn` tells what does not hold and goes on, `stop` ends the run.
        tell: Takes lines about what does not hold, each once.
        phase_start: Gives the step before which what trains has changed last.
    """

    def __init__(
        self,
        every: int,
        *,
        action: str = "warn",
        tell: Callable[[str], None] = lambda line: None,
        phase_start: Callable[[], int] = lambda: 0,
    ) -> None:
        self.every, self.action = every, action
        self._tell, self._phase_start = tell, phase_start
        self._before: _Moment | None = None
        self._window: StepRecord | None = None
        self._next_evaluation = 0
        self._told: set[str] = set()

    def on_step(self, learner: Learner) -> None:
        """See `NoWatch.on_step`; the first call, before any step, is where watching begins.

        Raises:
            UserError: Something does not hold, and the run is to end (exit status 6).
        """
        step, before, window = learner.state.step, self._before, self._window
        if window is not None:
            window.end()
            self._window = None
        if before is None or learner.state.rollbacks != before.rollbacks:
            self._before = _Moment(learner)
        elif window is not None and step > before.step:
            self._look(learner, before, window)
        if self._due(learner, step + 1):
            self._window = StepRecord(learner.optimizer)

    def _due(self, learner: Learner, step: int) -> bool:
        return step % self.every == 0 or step == learner.timetable.total_steps

    def _look(self, learner: Learner, before: _Moment, window: StepRecord) -> None:
        """Compare everything with how it was at the look before; `window` tells of the optimizer's newest step."""
        now = _Moment(learner)
        taken = now.step - before.step - (now.skipped - before.skipped)
        faults = [*_step_faults(now, before, taken, window.steps), *_differing_ranks(learner, now)]
        began = self._phase_start()
        mixed = began > before.step or (now.trains != before.trains and began < before.step)
        if not mixed:
            changed = before.prints.changed(now.prints)
            if any(map(is_shard, learner.model.parameters())):  # each process sees its own part
                changed = set(learner.engine.ranks.unite(sorted(changed)))
            faults += _frozen_faults(now, before, changed)
            if taken >= ENOUGH_STEPS and window.steps:
                faults += _idle_faults(learner, now, before, changed, window.gradients)
        if mixed or taken >= ENOUGH_STEPS:
            self._before = now
        self._report(learner, faults)

    @contextmanager
    def evaluation(self, learner: Learner) -> Iterator[None]:
        """See `NoWatch.evaluation`.

        Raises:
            UserError: Something has changed, and the run is to end (exit status 6).
        """
        if learner.state.step < self._next_evaluation:
            yield
            return
        self._next_evaluation = learner.state.step + self.every
        before = _EvaluationState(learner)
        yield
        self._report(learner, before.faults(_EvaluationState(learner)))

    def _report(self, learner: Learner, faults: Iterable[str]) -> None:
        """Tell what any process has found, or end the run."""
        lines = [line for line in learner.engine.ranks.unite(faults) if line not in self._told]
        self._told.update(lines)
        where = f"after step {learner.state.step}"
        if lines and self.action == "stop":
            raise UserError(
                f"training does not do what it says ({where})" + "".join(f"\n      {line}" for line in lines),
                key="trainer.watch",
                fix="trainer.watch.action=warn goes on all the same",
                exit_code=AUDIT_FAILED,
            )
        for line in lines:
            self._tell(f"watch ({where}): {line}")


class _Moment:
    """What a look keeps for the next one."""

    def __init__(self, learner: Learner) -> None:
        model, state = learner.model, learner.state
        reshard(model)
        self.step, self.rollbacks = state.step, state.rollbacks
        self.skipped = state.skipped + learner.engine.skipped()
        self.trains = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        self.held = dict(_statistics(model))
        self.prints = Fingerprints({**dict(model.named_parameters()), **self.held})
        groups = learner.optimizer.param_groups
        self.rates = {id(parameter): float(group["lr"]) for group in groups for parameter in group["params"]}
        self.counted = counted_steps(learner.optimizer)


def _statistics(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the running statistics of norm layers in eval mode by name."""
    for path, module in model.named_modules():
        if has_statistics(module) and not module.training:
            yield from ((f"{path}.{name}".lstrip("."), buffer) for name, buffer in module.named_buffers(recurse=False))


def _step_faults(now: _Moment, before: _Moment, taken: int, called: int) -> list[str]:
    """Say where the optimizer has not taken one step a window: by its own count, or else in the newest window."""
    if now.counted is not None and now.counted - (before.counted or 0) != taken:
        return [f"the optimizer took {now.counted - (before.counted or 0)} steps for {taken} windows of batches"]
    return [f"the optimizer took {called} steps for one window of batches"] if called > 1 else []


def _frozen_faults(now: _Moment, before: _Moment, changed: set[str]) -> list[str]:
    frozen = [name for name, trains in now.trains.items() if not trains and name in changed]
    held = [name for name in now.held if name in before.held and name in changed]
    return [
        *format_line("frozen, but moved:", frozen),
        *format_line("statistics of norm layers in eval mode moved:", held),
    ]


def _idle_faults(
    learner: Learner, now: _Moment, before: _Moment, changed: set[str], gradients: Mapping[int, Tensor]
) -> list[str]:
    """Say what trains and has not moved, unless its learning rate is 0.

    Steps that are too small for the numbers are no fault of a single parameter: a bias before a norm layer has hardly a
    gradient. They are one of half of the network.
    """
    parameters = {name: p for name, p in learner.model.named_parameters() if p.requires_grad and p.numel()}
    rates = {number: max(rate, before.rates.get(number, 0.0)) for number, rate in now.rates.items()}
    outside = [name for name, p in parameters.items() if id(p) not in rates and name not in changed]
    idle = {name: p for name, p in parameters.items() if rates.get(id(p)) and name not in changed}
    verdicts = {name: _why_idle(p, rates[id(p)], gradients.get(id(p))) for name, p in idle.items()}
    if any(map(is_shard, idle.values())):  # each process sees its own part: what moves most counts
        said = learner.engine.ranks.unite(f"{verdict} {name}" for name, verdict in verdicts.items())
        verdicts = {name: int(verdict) for verdict, name in (text.split(" ", 1) for text in sorted(said))}
    by_why = {why: [name for name, verdict in verdicts.items() if verdict == why] for why in range(4)}
    small, trained = by_why[TOO_SMALL], sum(p.numel() for p in parameters.values())
    mostly = 2 * sum(parameters[name].numel() for name in small) >= trained
    return [
        *format_line("trains, but is not in the optimizer and did not move:", outside),
        *format_line("trains, but no gradient reaches it:", by_why[UNREACHED], "; if it is not used, freeze it"),
        *format_line("trains, but only gradients of 0 reach it:", by_why[ZERO]),
        *format_line("trains, but did not move, although gradients reach it:", by_why[STUCK]),
        *format_line("trains, but did not move, as its steps are too small for its numbers:", small if mostly else ()),
    ]


def _why_idle(parameter: Tensor, rate: float, gradient: Tensor | None) -> int:
    """Tell why a parameter may not have moved; `gradient` is the largest absolute value of its gradient."""
    size = float(gradient) if gradient is not None else None
    if not size:
        return UNREACHED if size is None else ZERO
    own = part(parameter.detach())
    largest = float(own.abs().max()) if own.numel() else 0.0
    # A step along the gradient, and one of the size of the rate, would both have shown.
    return STUCK if rate * min(size, 1.0) > VISIBLE * torch.finfo(own.dtype).eps * largest else TOO_SMALL


def _differing_ranks(learner: Learner, now: _Moment) -> list[str]:
    """Say which weights are not the same in all processes, where each is to hold a copy."""
    ranks = learner.engine.ranks
    if ranks.size == 1 or any(map(is_shard, learner.model.parameters())):
        return []
    # Buffers may differ: each process gathers statistics of its own samples until the next step shares them.
    own = [f"{name}\n{sums}" for name, sums in now.prints.values().items() if name in now.trains]
    counts = Counter(text.partition("\n")[0] for text in ranks.unite(own))
    return format_line("not the same in all processes:", [name for name, count in counts.items() if count > 1])


class _EvaluationState:
    """What an evaluation must leave alone."""

    def __init__(self, learner: Learner) -> None:
        model, main = learner.model, learner.engine.ranks.main
        reshard(model)
        # What other processes have as a whole too, such as a buffer, rank 0 overwrites with its own.
        own = {
            name: tensor
            for name, tensor in model.state_dict(keep_vars=True).items()
            if isinstance(tensor, Tensor) and (main or isinstance(tensor, nn.Parameter) or is_shard(tensor))
        }
        parameters = dict(model.named_parameters())
        self.prints = Fingerprints(own)
        self.modes = {path: module.training for path, module in model.named_modules()}
        self.gradients = {name for name, parameter in parameters.items() if parameter.grad is not None}
        self.trains = {name for name, parameter in parameters.items() if parameter.requires_grad}

    def faults(self, now: _EvaluationState) -> list[str]:
        """List what is not as it was here."""
        modes = [path or "the model" for path, mode in now.modes.items() if self.modes.get(path, mode) != mode]
        left = sorted(now.gradients - self.gradients)
        return [
            *format_line("an evaluation changed", sorted(self.prints.changed(now.prints))),
            *format_line("an evaluation left gradients, which the next step takes:", left),
            *format_line("an evaluation changed what trains:", sorted(now.trains ^ self.trains)),
            *format_line("an evaluation left in another mode:", modes),
        ]
