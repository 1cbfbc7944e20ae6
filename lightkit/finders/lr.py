"""A learning rate, found by steps with a rate that rises (Smith 2015, https://arxiv.org/abs/1506.01186)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import UserError
from lightkit.common.exit_codes import FAILED
from lightkit.common.processes import lightkit_command
from lightkit.finders.child import MeasuringProcess, alone
from lightkit.finders.suggestion import LossAtRate, Suggestion, suggest

if TYPE_CHECKING:
    from lightkit.device.ranks import Ranks

KEY = "trainer.find_lr"
LOW, HIGH, STEPS = 1e-6, 10.0, 100
"""Smallest and largest rate, and steps between them."""
_DIVERGED, _WORSE = 4.0, 1.5
"""Times its best value, and times its first one, from which a loss does not come back."""


@dataclass(frozen=True)
class FoundRate:
    """What came of a search."""

    points: tuple[LossAtRate, ...]
    """Rates with the loss of the step that was made with them, before it."""
    suggestion: Suggestion | None
    """The rate; None where the loss does not fall with any."""
    configured: float
    """`optim.lr` as it is configured."""


def find_lr(
    cfg: DictConfig,
    *,
    low: float = LOW,
    high: float = HIGH,
    steps: int = STEPS,
    tell: Callable[[int, LossAtRate], None] = lambda step, point: None,
) -> FoundRate:
    """Search for a learning rate, in a process of its own.

    Args:
        cfg: The configuration.
        low: The rate to begin with.
        high: The rate to end with; the search ends before where the loss diverges.
        steps: Optimizer steps from one to the other.
        tell: Called with the number of each step and what it found.

    Raises:
        UserError: The parts of the run cannot be built, or a step fails.
    """
    configured = cfg.optim.get("lr")
    if configured is None:
        fix = "one of those in conf/optim, or a range of your own: train -m optim.lr=1e-4,1e-3,1e-2"
        raise UserError("the optimizer has no learning rate to look for", key="optim.lr", fix=fix)
    options = {"low": low, "high": high, "steps": steps}
    job = json.dumps({"what": "lr", "cfg": alone(cfg), "options": options})
    points: list[LossAtRate] = []
    with MeasuringProcess(job, lightkit_command("find", "--measure")[1:], key=KEY, fix=f"{KEY}=false") as child:
        for answer in child.answers():
            if not answer.get("end"):
                points.append(LossAtRate(answer["lr"], answer["loss"]))
                tell(len(points), points[-1])
    return FoundRate(tuple(points), suggest(points), float(configured))


def resolve_lr(
    cfg: DictConfig, ranks: Ranks, tell: Callable[[str], None] = lambda line: None
) -> tuple[DictConfig, tuple[str, ...]]:
    """Return the configuration with a rate in the place of `trainer.find_lr`, and lines about it.

    Args:
        cfg: The configuration.
        ranks: The processes of the run; the first one searches for all.
        tell: Called with a line before the search, which takes a while.

    Raises:
        UserError: No rate lets the loss fall (exit code 1), or a step fails.
    """
    if not cfg.trainer.find_lr:
        return cfg, ()

    def search() -> tuple[float, str]:
        tell(f"lr      looking for a learning rate ({KEY}=true)")
        found = find_lr(cfg)
        if found.suggestion is None:
            what, fix = "the loss falls with none of the rates that were tried", "lightkit find lr draws what it saw"
            raise UserError(what, key=KEY, fix=fix, exit_code=FAILED, family="not-learning")
        before = f"optim.lr was {found.configured:g}"
        return found.suggestion.lr, f"lr      {found.suggestion.lr:g}: {found.suggestion.reason}; {before}"

    lr, line = ranks.shared(search)
    other: Any = OmegaConf.create(OmegaConf.to_container(cfg))
    other.optim.lr, other.trainer.find_lr = lr, False
    OmegaConf.set_readonly(other, True)
    return cast("DictConfig", other), (line,)


def keep_found_lr(cfg: DictConfig, saved_text: str) -> DictConfig:
    """Return the configuration to resume with: the rate that was found when the run began stays.

    Args:
        cfg: The configuration at hand.
        saved_text: That of the checkpoint, as YAML.
    """
    if not cfg.trainer.find_lr or not saved_text:
        return cfg
    saved: Any = OmegaConf.create(saved_text)
    other: Any = OmegaConf.create(OmegaConf.to_container(cfg))
    other.optim.lr, other.trainer.find_lr = saved.optim.lr, False
    OmegaConf.set_readonly(other, True)
    return cast("DictConfig", other)


def measure(cfg: DictConfig, answer: Callable[[dict[str, Any]], None], *, low: float, high: float, steps: int) -> None:
    """Make steps with rising rates in this process, until the loss diverges.

    Groups keep their ratio to `optim.lr`; those with a rate of their own keep that.

    Args:
        cfg: The configuration, for one process.
        answer: Takes the rate and the loss of each step.
        low: The first rate.
        high: The last one.
        steps: The number of steps.

    Raises:
        UserError: No parameter has a rate that follows `optim.lr`.
    """
    # Here, not above: whoever asks for the search needs no PyTorch.
    from lightkit.assembly.learner import build_optimizer
    from lightkit.finders.steps import TrialSteps

    trial = TrialSteps(cfg)
    learner, configured = trial.learner, float(cfg.optim.lr)
    doubled: Any = OmegaConf.create(OmegaConf.to_container(cfg))
    doubled.optim.lr = 2 * configured
    other = build_optimizer(doubled, learner.made, learner.timetable, learner.engine)
    twice, own = [float(group["lr"]) for group in other.param_groups], learner.scheduler.own_rates
    follows = [(after - before) / configured for before, after in zip(own, twice, strict=True)]
    if not any(follows):
        what, fix = "every group of parameters has a rate of its own", "rules with lr_scale in the place of lr"
        raise UserError(what, key="optim.lr", fix=fix)
    first, best = math.nan, math.inf
    with closing(trial):
        made = trial.run(learner.data.train)
        for number in range(steps):
            lr = low * (high / low) ** (number / max(steps - 1, 1))
            for group, rate, share in zip(learner.optimizer.param_groups, own, follows, strict=True):
                _set(group, rate + share * (lr - configured))
            loss = float(next(made).loss)
            if not math.isfinite(loss):
                break
            answer({"lr": lr, "loss": loss})
            first, best = loss if math.isnan(first) else first, min(best, loss)
            if number >= steps // 10 and loss > max(_DIVERGED * best, _WORSE * first):
                break
    answer({"end": True})


def _set(group: dict[str, Any], rate: float) -> None:
    """Give a group its rate; a compiled step has it as a tensor, which stays the same object."""
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
