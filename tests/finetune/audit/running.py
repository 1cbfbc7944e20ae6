"""A plain loop with phases and an audit, and networks and optimizers for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import build_plan, phase_steps
from lightkit.finetune.tuning import Tuning
from lightkit.trainer.audit.phases import FinetuneAudit

EPOCH = 4


BODY, HEAD = ("0", "1", "3"), ("5",)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)
    )


def names(model: nn.Module, *paths: str) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters() if name.split(".")[0] in (paths or (*BODY, *HEAD)))


def grouped(model: nn.Module, kind: type[Optimizer] = SGD, **options: Any) -> Optimizer:
    """A group for the body, one for the head."""
    own = dict(model.named_parameters())
    groups = []
    for label, paths in (("body", BODY), ("head", HEAD)):
        listed = [name for name in own if name.split(".")[0] in paths]
        groups.append({"params": [own[name] for name in listed], "param_names": listed, "name": label})
    return kind(groups, **({"lr": 0.1} | options))


def with_own_rates(optimizer: Optimizer) -> Optimizer:
    """An optimizer whose groups know their own rates, as under any schedule."""
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def phases(model: nn.Module, *, still: Sequence[str] = ("1", "4")) -> list[Phase]:
    """The head alone for two epochs, then everything, then the head again."""
    head = names(model, *HEAD)
    return [
        Phase(head, epoch=0, frozen_norms=frozenset(still)),
        Phase(names(model), epoch=2),
        Phase(head, step=14, frozen_norms=frozenset(still)),
    ]


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(5, 6, generator=draw), torch.randint(3, (5,), generator=draw)


class Run:
    """A plain loop with phases and an audit, and a place for mischief before each step."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, listed: Sequence[Phase], **options: Any) -> None:
        self.model, self.optimizer, self.lines = model, optimizer, list[str]()
        self.audit = FinetuneAudit(model, optimizer, report=self.lines.append, **options)
        self.tuning = Tuning(model, listed, auditor=self.audit)

    def go(
        self,
        steps: int = 20,
        *,
        start: int = 0,
        before: Callable[[int], None] = lambda step: None,
        after_entering: Callable[[int], None] = lambda step: None,
        loss: Callable[[int, Tensor], Tensor] = lambda step, value: value,
        skips: Callable[[int], bool] = lambda step: False,
        schedule: Any = None,
    ) -> list[dict[str, Any]]:
        source = batches()
        for step in range(start, steps):
            if step % EPOCH == 0 or step == start:
                self.tuning.train(self.model)
            before(step)
            self.tuning.before_step(step // EPOCH, step)
            after_entering(step)
            x, y = next(source)
            value = loss(step, nn.functional.cross_entropy(self.model(x), y))
            value.backward()
            if not skips(step):
                self.optimizer.step()
            if schedule is not None:
                schedule.step()
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self.audit.after_steps(step + 1)
        self.tuning.finish(steps)
        return self.audit.table()


def planned(model: nn.Module, optimizer: Optimizer, listed: Sequence[Phase], steps: int = 20) -> Any:
    moments = phase_steps(listed, steps_per_epoch=EPOCH, total_steps=steps)
    rates = {step: [group["lr"] for group in optimizer.param_groups] for own in moments for step in own}
    return build_plan(model, optimizer, listed, steps=moments, rates=rates)
