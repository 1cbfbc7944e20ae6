"""Whether training does what it says: what trains moves, what is frozen rests, and nothing else touches the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lightkit.common.modules import is_shard, reshard
from lightkit.device.ranks import Ranks
from lightkit.finetune.tables import format_line, format_names
from lightkit.trainer.audit.observations import Fingerprints, StepRecord, largest
from lightkit.trainer.audit.rules import (
    ENOUGH_STEPS,
    STUCK,
    TOO_SMALL,
    UNREACHED,
    ZERO,
    announce,
    norm_statistics,
    own_tensors,
    why_idle,
)
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
    - The optimizer has taken one step for each window of batches, whoever asked for it.
    - All processes hold the same weights, where each holds a copy.
    - An evaluation leaves weights, buffers, gradients and modes as they are. The first is looked at, and later ones
      when a look is due.

    A look waits for the device. Between two of them steps are counted, and nothing but a few numbers for each tensor is
    kept. All processes of a run look at the same steps, and come to the same verdict.

    Args:
        every: Optimizer steps between two looks; the last step of a run is looked at too.
        action: `warn` tells what does not hold and goes on, `stop` ends the run.
        tell: Takes lines about what does not hold, each once.
        phase_start: Gives the step before which what trains has changed last.
        see: Returns what there is to read of a learner.
    """

    def __init__(
        self,
        every: int,
        *,
        action: str = "warn",
        tell: Callable[[str], None] = lambda line: None,
        phase_start: Callable[[], int] = lambda: 0,
        see: Callable[[Learner], WatchedModel] = WatchedModel,
    ) -> None:
        self.every, self.action = every, action
        self._tell, self._phase_start, self._see = tell, phase_start, see
        self._record: StepRecord | None = None
        self._before: WatchedMoment | None = None  # since when what trains must have moved
        self._last: WatchedMoment | None = None
        self._next_look = self._next_evaluation = 0
        self._told: set[tuple[str, str]] = set()

    def on_step(self, learner: Learner) -> None:
        """See `NoWatch.on_step`; the first call, before any step, is where watching begins.

        Raises:
            UserError: Something does not hold, and the run is to end (exit status 6).
        """
        state = learner.state
        if self._record is None:
            self._record = StepRecord(learner.optimizer, self._see(learner).largest)
        if self._before is None or self._last is None or state.rollbacks != self._before.rollbacks:
            self._before = self._last = WatchedMoment(self._see(learner), self._record.steps)
        elif state.step == self._next_look and state.step > self._last.step:
            self._look(self._see(learner), self._before, self._last, self._record)
        if (state.step + 1) % self.every == 0 or state.step + 1 == learner.timetable.total_steps:
            self._next_look = state.step + 1
            self._record.listen()

    def _look(self, seen: WatchedModel, before: WatchedMoment, last: WatchedMoment, record: StepRecord) -> None:
        """Compare everything with how it was at the look before, and what moves with how it was some steps ago."""
        now, learner = WatchedMoment(seen, record.steps), seen.learner
        faults: Faults = {"": [*_step_faults(now, last), *_differing_ranks(learner, now)]}
        longest = max((part.every for part in getattr(learner.optimizer, "named", {}).values()), default=1)
        began, enough = self._phase_start(), now.taken - before.taken >= ENOUGH_STEPS * longest
        mixed = began > before.step or (now.trains != before.trains and began < before.step)
        if not mixed:
            gradients = record.gradients if enough else None
            for member, own in _movement_faults(seen, now, before, gradients).items():
                faults.setdefault(member, []).extend(own)
        if mixed or enough:
            self._before = now
        self._last = now
        self._report(seen, faults)

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
        seen = self._see(learner)
        before = EvaluationState(seen)
        yield
        self._report(seen, before.faults(EvaluationState(seen)))

    def _report(self, seen: WatchedModel, faults: Faults) -> None:
        """Tell what any process has found, or end the run."""
        faults[""] = seen.learner.engine.ranks.unite(faults.get("", ()))
        whose: dict[str, list[str]] = {}
        for member, texts in faults.items():
            for text in texts:
                if (member, text) not in self._told:
                    whose.setdefault(text, []).append(member)
                    self._told.add((member, text))
        lines = [_name_members(members, of=seen.members) + text for text, members in whose.items()]
        where = f"after step {seen.learner.state.step}"
        ends = ("training does not do what it says", "trainer.watch", "trainer.watch.action=warn")
        announce(lines, where, who="watch", tell=self._tell, ends=ends if self.action == "stop" else None)


def _name_members(members: Sequence[str], *, of: Sequence[str]) -> str:
    """Say before a fault which models it is one of: nothing where it is not that of single ones."""
    if members[0] == "":
        return ""
    if len(members) == len(of) > 1:
        return "all members: "
    return f"member{'s' * (len(members) > 1)} {format_names(members)}: "


def _step_faults(now: WatchedMoment, last: WatchedMoment) -> list[str]:
    """Say where the optimizer has not taken one step a window."""
    steps, windows = now.steps - last.steps, now.windows - last.windows
    if steps == windows:
        return []
    what = "one window" if windows == 1 else f"{windows} windows"
    return [f"the optimizer took {steps} step{'s' * (steps != 1)} for {what} of batches"]


def _movement_faults(
    seen: WatchedModel, now: WatchedMoment, before: WatchedMoment, gradients: Mapping[int, Tensor] | None
) -> Faults:
    """Say of each model what rests and has moved, and what trains and has not.

    Args:
        seen: The models.
        now: How they are.
        before: How they were.
        gradients: What is known of the newest gradients; None says nothing of what trains.
    """
    parameters = {name: p for name, p in seen.learner.model.named_parameters() if p.requires_grad and p.numel()}
    known = {name: gradients[id(p)] for name, p in parameters.items() if gradients and id(p) in gradients}
    rates = {name: max(rate, before.rates.get(name, 0.0)) for name, rate in now.rates.items()}
    faults: Faults = {}
    for member, changed in seen.changed(before.prints, now.prints).items():
        frozen = [name for name, trains in now.trains.items() if not trains and name in changed]
        held = [name for name in now.held if name in before.held and name in changed]
        faults[member] = [
            *format_line("frozen, but moved:", frozen),
            *format_line("statistics of norm layers in eval mode moved:", held),
        ]
        if gradients is not None and not parameters.keys() <= changed:
            own = seen.of_member(parameters, member), seen.of_member(known, member)
            faults[member] += _idle_faults(*own, rates, changed, seen.learner.engine.ranks)
    return faults


def _idle_faults(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    rates: Mapping[str, float],
    changed: set[str],
    ranks: Ranks,
) -> list[str]:
    """Say which of the parameters that train have not moved, unless their learning rates are 0.

    Steps that are too small for the numbers are no fault of a single parameter: a bias before a norm layer has hardly a
    gradient. They are one of half of the network. Where a gradient is not finite, others tell.
    """
    outside = [name for name in parameters if name not in rates and name not in changed]
    idle = {name: p for name, p in parameters.items() if rates.get(name) and name not in changed}
    sizes = {name: float(gradients[name]) for name in idle if name in gradients}
    verdicts = {name: why_idle(p, rates[name], sizes.get(name)) for name, p in idle.items()}
    if any(map(is_shard, idle.values())):  # each process sees its own part: what moves most counts
        said = ranks.unite(f"{verdict} {name}" for name, verdict in verdicts.items())
        verdicts = {name: int(verdict) for verdict, name in (text.split(" ", 1) for text in sorted(said))}
    by_why = {why: [name for name, verdict in verdicts.items() if verdict == why] for why in range(5)}
    small, trained = by_why[TOO_SMALL], sum(p.numel() for p in parameters.values())
    mostly = 2 * sum(parameters[name].numel() for name in small) >= trained
    return [
        *format_line("trains, but is not in the optimizer and did not move:", outside),
        *format_line("trains, but no gradient reaches it:", by_why[UNREACHED], "; if it is not used, freeze it"),
        *format_line("trains, but only gradients of 0 reach it:", by_why[ZERO]),
        *format_line("trains, but did not move, although gradients reach it:", by_why[STUCK]),
        *format_line("trains, but did not move, as its steps are too small for its numbers:", small if mostly else ()),
    ]


def _differing_ranks(learner: Learner, now: WatchedMoment) -> list[str]:
    """Say which weights are not the same in all processes, where each is to hold a copy."""
    ranks = learner.engine.ranks
    if ranks.size == 1 or any(map(is_shard, learner.model.parameters())):
        return []
    # Buffers may differ: each process gathers statistics of its own samples until the next step shares them.
    own = [f"{name}\n{sums}" for name, sums in now.prints.values().items() if name in now.trains]
    counts = Counter(text.partition("\n")[0] for text in ranks.unite(own))
    return format_line("not the same in all processes:", [name for name, count in counts.items() if count > 1])
