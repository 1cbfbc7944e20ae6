"""Several optimizers by name, each over parameters of its own: those of a GAN, or of actor and critic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch.optim import Optimizer

from lightkit.common.errors import AUDIT_FAILED, UserError
from lightkit.common.stepping import needs_closure
from lightkit.optim.composed import ComposedOptimizer, Groups
from lightkit.optim.rules import Rule, targets


class Part(NamedTuple):
    """One of several optimizers."""

    optimizer: Optimizer
    """Over the groups whose `part` is its name."""
    every: int = 1
    """It steps after each so many windows of batches."""
    clip: Any = None
    """Limits its gradients; None leaves that to the run."""


class Several(ComposedOptimizer):
    """Several optimizers by name, each of which steps by a loss of its own (`Task.part`), one after the other.

    Groups, schedule and checkpoint are those of one.

    Args:
        params: All groups; each names its optimizer in `part`.
        parts: The optimizers by name.

    Raises:
        UserError: The first does not step every time, or one cannot step by gradients alone.
    """

    def __init__(self, params: Groups, parts: Mapping[str, Part]) -> None:
        for number, (name, part) in enumerate(parts.items()):
            if needs_closure(part.optimizer):
                what = "each optimizer steps by gradients alone"
                raise UserError(what, argument=f"parts.{name}", received=type(part.optimizer).__name__)
            if not number and part.every != 1:
                what = "the first optimizer steps after every window of batches"
                raise UserError(what, argument=f"parts.{name}.every", received=part.every, expected="1")
        super().__init__([*params], {name: part.optimizer for name, part in parts.items()})
        self.named = dict(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "named": self.named}

    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """Let each optimizer step.

        Args:
            closure: Lets the optimizer of a name step in its own way; None steps by the gradients there are.

        Raises:
            UserError: Parameters of another one have moved (exit status 6).
        """
        if closure is None:
            return super().step()
        self.linked()
        for name in self.parts:
            rest = [group for group in self.param_groups if group["part"] != name]
            others = [pair for group in rest for pair in zip(group["param_names"], group["params"])]
            before = [parameter._version for _, parameter in others]
            closure(name)
            moved = [label for (label, each), version in zip(others, before) if each._version != version]
            if moved:
                what = f"when this optimizer stepped, parameters of another moved: {', '.join(moved[:5])}"
                raise UserError(what, key=f"optim.parts.{name}", exit_code=AUDIT_FAILED)
        return None


def divided(known: Mapping[str, Sequence[str]], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the name of the optimizer of each parameter.

    Args:
        known: First name → all names of every parameter that ever trains.
        parts: The settings of the optimizers; `match` has the patterns of their parameters.

    Raises:
        UserError: A pattern matches nothing, or a parameter is in two optimizers, or in none.
    """
    owners: dict[str, list[str]] = {name: [] for name in known}
    for part, settings in parts.items():
        patterns = [settings["match"]] if isinstance(settings["match"], str) else settings["match"]
        for name in targets(Rule(f"optim.parts.{part}", part, tuple(patterns)), known):
            owners[name].append(part)
    wrong = [name for name, own in owners.items() if len(own) != 1]
    if wrong:
        what = f"not in one optimizer: {', '.join(wrong[:5])}"
        received = " and ".join(owners[wrong[0]]) or "none"
        fix = "patterns in `match` that take each parameter once; finetune.freeze leaves some as they are"
        raise UserError(what, argument="parts", received=received, fix=fix, family="pattern")
    return {name: own[0] for name, own in owners.items()}
