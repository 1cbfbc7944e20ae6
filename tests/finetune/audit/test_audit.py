"""Healthy runs pass; every planted fault is found, with the names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lightkit.common.errors import UserError
from lightkit.finetune.audit.audit import AuditError, FinetuneAudit
from lightkit.finetune.audit.plan import build_plan, phase_steps
from lightkit.finetune.phases import Phase
from lightkit.finetune.tuning import Tuning

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


HEALTHY = [
    (SGD, {}),
    (SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    (AdamW, {"lr": 0.01, "weight_decay": 0.5}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    (torch.optim.Adagrad, {"lr": 0.1}),
]


@pytest.mark.parametrize(("kind", "options"), HEALTHY, ids=lambda value: getattr(value, "__name__", ""))
def test_nothing_is_said_of_a_healthy_run(kind: type[Optimizer], options: dict[str, Any]) -> None:
    model = network()
    optimizer, listed = grouped(model, kind, **options), phases(model)
    run = Run(
        model, optimizer, listed, plan=planned(model, optimizer, listed), phases=listed, must_train=names(model, "5")
    )
    rows = run.go()
    assert run.lines == []
    assert [(row["phase"], row["group"], row["should_move"], row["moved"], row["gradients"]) for row in rows] == [
        ("epoch 0", "body", False, 0, 0),
        ("epoch 0", "head", True, 2, 2),
        ("epoch 2", "body", True, 6, 6),
        ("epoch 2", "head", True, 2, 2),
        ("step 14", "body", False, 0, 0),
        ("step 14", "head", True, 2, 2),
    ]
    statistics = [
        (row["norms"], row["norms_should_move"], row["norms_moved"]) for row in rows if row["group"] == "body"
    ]
    assert statistics == [(2, 0, 0), (2, 2, 2), (2, 0, 0)]
    assert json.loads(json.dumps(rows)) == rows
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


@pytest.mark.parametrize("bn", ["stats", "train"])
def test_norms_of_a_frozen_part_may_go_on(bn: str) -> None:
    model = network()
    head = names(model, "5", "1") if bn == "train" else names(model, "5")
    run = Run(model, grouped(model), [Phase(head, epoch=0)])
    rows = {row["group"]: row for row in run.go(8)}
    assert run.lines == []
    assert rows["body" if bn == "stats" else "body (frozen)"]["should_move"] is False
    assert sum(row["norms_moved"] for row in rows.values()) == 2


def test_a_group_may_train_in_part() -> None:
    model = network()
    run = Run(
        model, SGD(model.parameters(), lr=0.1), [Phase(names(model, "5"), epoch=0, frozen_norms=frozenset({"1", "4"}))]
    )
    rows = run.go(4)
    assert [(row["group"], row["tensors"], row["should_move"]) for row in rows] == [
        ("group 0", 2, True),
        ("group 0 (frozen)", 6, False),
    ]


def test_what_never_trains_needs_no_group() -> None:
    model = network()
    optimizer = SGD([{"params": list(model[5].parameters()), "name": "head"}], lr=0.1)
    rows = Run(model, optimizer, [Phase(names(model, "5"), epoch=0, frozen_norms=frozenset({"1", "4"}))]).go(4)
    assert [(row["group"], row["should_move"]) for row in rows] == [("head", True), ("never trained", False)]


# Eight planted faults


def test_norm_statistics_that_drift() -> None:
    model = network()
    run = Run(model, grouped(model), phases(model))
    with pytest.raises(AuditError, match=r"should be in eval mode but is in train mode: 1, 4") as caught:
        # What a validation does that puts everything back into training mode.
        run.go(after_entering=lambda step: model.train() if step else None)
    assert caught.value.exit_code == 6
    assert "after step 2" in str(caught.value)
    assert "statistics of norm layers should rest but moved: 1.num_batches_tracked, 1.running_mean" in str(caught.value)


def test_norm_statistics_that_drift_behind_a_right_mode() -> None:
    model = network()
    run = Run(model, grouped(model), phases(model))

    def drift(step: int) -> None:
        if step == 5:
            model[1].running_var += 1e-6

    with pytest.raises(AuditError, match=r"epoch 0, until step 8\)\n.*should rest but moved: 1.running_var"):
        run.go(before=drift)


def test_gradient_of_before_that_still_moves_what_is_frozen() -> None:
    model = network()
    run = Run(model, grouped(model, momentum=0.9), phases(model))

    def forgotten(step: int) -> None:
        if step == 14:  # freezes what has a gradient, and leaves it there
            run.audit.end(step)
            phase = run.tuning.phases[2]
            for name, parameter in model.named_parameters():
                parameter.grad = torch.ones_like(parameter)
                parameter.requires_grad_(name in phase.trainable)
            model[1].training = model[4].training = False
            run.audit.begin(phase, epoch=3, step=14)

    with pytest.raises(AuditError, match="frozen but still has a gradient of before.*0.weight, 0.bias, 1.weight"):
        run.go(before=forgotten)


def test_stale_gradient_that_comes_after_the_beginning() -> None:
    model = network()
    run = Run(model, grouped(model, weight_decay=0.1), phases(model))

    def plant(step: int) -> None:
        model[0].weight.grad = torch.zeros_like(model[0].weight)  # weight decay alone moves it

    with pytest.raises(AuditError, match=r"after step 2\)\n.*body: should rest but moved: 0.weight\n"):
        run.go(after_entering=plant)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


def test_optimizer_built_before_something_was_put_in() -> None:
    model = network()
    optimizer = grouped(model)
    parametrize.register_parametrization(model[3], "weight", Scaled())
    model[5] = nn.Linear(8, 4)
    with pytest.raises(AuditError) as caught:
        Run(model, optimizer, [Phase(frozenset(dict(model.named_parameters())), epoch=0)]).go(4)
    text = str(caught.value)
    assert "trains but is not in the optimizer (was the optimizer built before the network was changed?): " in text
    assert "3.parametrizations.weight.0.scale, 5.weight, 5.bias" in text
    assert "in the optimizer but not in the network (was the optimizer built before" in text
    assert "): 5.weight, 5.bias" in text


@pytest.mark.parametrize("moment", ["at the start", "later", "planned otherwise"])
def test_learning_rate_of_zero(moment: str) -> None:
    model = network()
    optimizer, listed = grouped(model), phases(model)
    plan = planned(model, optimizer, listed) if moment == "planned otherwise" else None
    run = Run(model, optimizer, listed, plan=plan)

    def stop(step: int) -> None:
        if step >= (1 if moment == "later" else 0):
            optimizer.param_groups[1]["lr"] = 0.0

    expected = {
        "at the start": r"before step 0\)\n.*trains with a learning rate of 0: head \(2 tensors\)",
        "later": r"epoch 2, before step 8\)\n.*trains with a learning rate of 0: head",
        "planned otherwise": r"group head: learning rate 0 at step 0, planned 0.1",
    }
    with pytest.raises(AuditError, match=expected[moment]):
        run.go(before=stop)


def test_learning_rate_of_zero_in_a_schedule() -> None:
    model = network()
    optimizer = grouped(model)
    schedule = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.0])
    run = Run(model, optimizer, phases(model))
    with pytest.raises(
        AuditError, match=r"head: should move but did not, although gradients reached it: 5.weight, 5.b"
    ):
        run.go(schedule=schedule)


def test_new_head_that_no_phase_trains() -> None:
    model = network()
    listed = [Phase(names(model, "0"), epoch=0), Phase(names(model, "0", "3"), epoch=1)]
    with pytest.raises(AuditError, match="new, but no phase trains it: 5.bias, 5.weight"):
        FinetuneAudit(model, grouped(model), phases=listed, must_train=sorted(names(model, "5")))
    FinetuneAudit(model, grouped(model), phases=[*listed, Phase(names(model), epoch=2)], must_train=names(model, "5"))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(6, 3), nn.Linear(6, 3)
        self.out.weight = self.inside.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) + self.out(x)


def test_tied_weights_frozen_and_trained_at_once() -> None:
    model = Tied()
    wrong = Phase(frozenset({"out.weight", "out.bias"}), epoch=0)
    with pytest.raises(AuditError, match="one tensor is to train as out.weight and to rest as inside.weight"):
        Run(model, SGD(model.parameters(), lr=0.1), [wrong]).go(4)
    for every in ({"inside.weight", "out.bias"}, {"inside.weight", "out.weight", "out.bias"}):
        Run(model, SGD(model.parameters(), lr=0.1), [Phase(frozenset(every), epoch=0)]).go(4)


def test_two_parameters_in_the_same_memory() -> None:
    model = Tied()
    model.out.weight = nn.Parameter(model.inside.weight.data)
    wrong = Phase(frozenset({"out.weight", "out.bias"}), epoch=0)
    with pytest.raises(AuditError, match="out.weight trains and inside.weight rests, but they are the same memory"):
        Run(model, SGD(model.parameters(), lr=0.1), [wrong]).go(4)


def test_phase_at_the_wrong_moment() -> None:
    model = network()
    listed = phases(model)
    run = Run(model, grouped(model), listed)
    run.go(5)
    with pytest.raises(AuditError, match=r"the phase begins with epoch 2, but this is epoch 1, step 5: too early"):
        Tuning(model, [listed[1]], auditor=run.audit)._begin(listed[1], 1, 5)
    run = Run(model, grouped(model), listed)
    run.go(5)
    with pytest.raises(AuditError, match=r"begins with epoch 2, but this is epoch 3, step 12: too late"):
        Tuning(model, [listed[1]], auditor=run.audit)._begin(listed[1], 3, 12)


def test_unfreezing_in_the_middle_of_a_phase() -> None:
    model = network()

    def thaw(step: int) -> None:
        if step == 5:
            model[0].weight.requires_grad_()

    with pytest.raises(AuditError) as caught:
        Run(model, grouped(model), phases(model)).go(before=thaw)
    assert "until step 8" in str(caught.value)
    assert "should rest but trains: 0.weight" in str(caught.value)
    assert "body: should rest but moved: 0.weight" in str(caught.value)


def test_unfreezing_that_did_not_happen() -> None:
    model = network()
    run = Run(model, grouped(model), phases(model))
    run.tuning.due = lambda epoch, step: run.tuning.phases[step >= 8]  # type: ignore[method-assign]

    def freeze(step: int) -> None:
        if step == 9:
            model[0].weight.requires_grad_(False)

    with pytest.raises(AuditError, match=r"epoch 2, after step 10\)\n.*should train but is frozen: 0.weight"):
        run.go(before=freeze)


# Other things that go wrong


def test_branch_that_no_gradient_reaches() -> None:
    model = network()

    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach()

    model[2] = Cut()
    optimizer = SGD(
        [{"params": list(model[index].parameters()), "name": f"layer {index}"} for index in (0, 1, 3, 5)], lr=0.1
    )
    run = Run(model, optimizer, [Phase(names(model), epoch=0)])
    with pytest.raises(
        AuditError, match=r"epoch 0, after step 32\)\n.*no gradient has reached group layer 0 in 32 ste"
    ):
        run.go(40)
    assert run.lines[0] == "audit: epoch 0: no gradient has reached group layer 0 in 2 steps"
    with pytest.raises(AuditError, match="layer 1: no gradient reached it, and it did not move: 1.weight, 1.bias"):
        Run(model, optimizer, [Phase(names(model), epoch=0)]).go(8)


def with_spare() -> tuple[nn.Sequential, Phase]:
    """A network with a parameter that it does not use, and one without elements."""
    model = network()
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    model.register_parameter("none", nn.Parameter(torch.ones(0)))
    return model, Phase(frozenset(dict(model.named_parameters())), epoch=0)


def test_single_parameter_without_gradient() -> None:
    model, phase = with_spare()
    unused = "no gradient reached spare; if it is not meant to be used, freeze it: finetune.freeze"
    run = Run(model, SGD(model.parameters(), lr=0.1), [phase])
    run.go(2)
    assert run.lines == [
        "audit: epoch 0: no gradient has reached spare of group group 0 in 2 steps",
        f"audit: epoch 0: group 0: {unused}",
    ]
    with pytest.raises(AuditError, match=rf"epoch 0, until step 4\)\n.*group 0: {unused}\n"):
        Run(model, SGD(model.parameters(), lr=0.1), [phase]).go(4)
    with pytest.raises(AuditError, match=r"after step 32\)\n.*no gradient has reached spare of group group 0 in 32 st"):
        Run(model, SGD(model.parameters(), lr=0.1), [phase]).go(40)


def test_half_of_a_group_that_no_gradient_reaches() -> None:
    model = network()
    model[2].register_forward_hook(lambda module, args, output: output.detach())
    run = Run(model, SGD(model.parameters(), lr=0.1), [Phase(names(model), epoch=0)])
    with pytest.raises(AuditError, match="group 0: no gradient reached 0.weight, 0.bias, 1.weight, 1.bias; if"):
        run.go(6)


def test_half_of_what_trains_with_gradients_of_zero() -> None:
    model = network()
    model[3].register_forward_hook(lambda module, args, output: output.detach() + output * 0)
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) is wide]} for wide in (False, True)]
    dull = "only gradients of 0 reached"
    with pytest.raises(AuditError, match=f"{dull} half of what trains or more: 0.bias, 1.weight, 1.bias, 3.bias, 0.we"):
        Run(model, SGD(groups, lr=0.1), [Phase(names(model), epoch=0)]).go(6)
    model = network()
    model[0].bias.register_hook(torch.zeros_like)
    run = Run(model, SGD(model.parameters(), lr=0.1), [Phase(names(model), epoch=0)])
    run.go(6)
    assert run.lines == [f"audit: epoch 0: group 0: {dull} 0.bias"]


@pytest.mark.parametrize(("kind", "lr"), [(SGD, 0.1), (AdamW, 0.01)])
def test_single_parameter_that_never_moves(kind: type[Optimizer], lr: float) -> None:
    model = network()
    kept = model[5].bias.detach().clone()

    def put_back(step: int) -> None:
        model[5].bias.data.copy_(kept)

    run = Run(model, kind(model.parameters(), lr=lr), [Phase(names(model), epoch=0)])
    run.optimizer.register_step_post_hook(lambda *_: put_back(0))
    with pytest.raises(AuditError, match="should move but did not, although gradients reached them: 5.bias\n"):
        run.go(6)


def test_single_parameter_whose_steps_are_below_its_resolution() -> None:
    model = network()
    model[0].bias.data.fill_(1e6)
    model[0].bias.register_hook(lambda gradient: gradient * 1e-6)
    run = Run(model, SGD(model.parameters(), lr=0.1), [Phase(names(model), epoch=0)])
    run.go(6)
    assert run.lines == [
        "audit: epoch 0: group 0: did not move, as their steps were too small for their numbers: 0.bias"
    ]


def test_only_gradients_of_zero() -> None:
    model = network()
    optimizer = grouped(model, weight_decay=0.1)
    run = Run(model, optimizer, [Phase(names(model), epoch=0)])

    def forward(x: Tensor) -> Tensor:
        return nn.Sequential.forward(model, x) * 0 + model[5].bias

    model.forward = forward  # type: ignore[method-assign]
    with pytest.raises(AuditError, match="body: only gradients of 0 reached it: 0.weight, 0.bias"):
        run.go(8)


def test_what_starts_at_zero_holds_back_the_gradients_of_others() -> None:
    model = network()
    nn.init.zeros_(model[5].weight)
    run = Run(model, grouped(model), [Phase(names(model), epoch=0)])
    run.go(1)
    assert run.lines == [
        "audit: epoch 0: body: only gradients of 0 reached it, and it did not move: "
        "0.weight, 0.bias, 1.weight, 1.bias, 3.weight and 1 more"
    ]
    model = network()
    nn.init.zeros_(model[5].weight)
    run = Run(model, grouped(model), [Phase(names(model), epoch=0)])
    run.go(4)
    assert run.lines == []


def test_steps_too_small_for_any_bit_are_a_note_at_first() -> None:
    model = network()
    optimizer = grouped(model, lr=1e-12)
    run = Run(model, optimizer, [Phase(names(model, "5"), epoch=0, frozen_norms=frozenset({"1", "4"}))])
    run.go(2)
    assert run.lines == [
        "audit: epoch 0: head: should move but did not, as a learning rate of 1e-12 is too small to change float32 "
        "weights of 0.34; raise it: 5.weight, 5.bias"
    ]
    with pytest.raises(AuditError, match="head: should move but did not"):
        run.go(3)


def test_statistics_that_should_go_on() -> None:
    model = network()
    run = Run(model, grouped(model), [Phase(names(model, "5"), epoch=0)])

    def rest(step: int) -> None:
        model.eval()

    with pytest.raises(AuditError, match="body: statistics of its norm layers should go on but rest: 1"):
        run.go(4, after_entering=rest)
    model.train()
    model[1].eval()
    with pytest.raises(AuditError, match="norm layer that should be in train mode but is in eval mode: 1"):
        FinetuneAudit(model, grouped(model)).begin(Phase(names(model), epoch=0), epoch=0, step=0)


def test_other_buffers_of_frozen_modules_are_a_note() -> None:
    model = network()
    model[0].register_buffer("counter", torch.zeros(1))
    run = Run(model, grouped(model), phases(model))

    def count(step: int) -> None:
        model[0].counter += 1

    run.go(8, before=count)
    changed = "buffers of frozen modules changed"
    assert run.lines == [f"audit: epoch 0: {changed}: 0.counter; finetune.dropout=off would hold these in eval mode"]
    listed = [Phase(names(model, *HEAD), epoch=0, frozen_norms=frozenset(("1", "4")), eval_modules=frozenset("0"))]
    run = Run(model, grouped(model), listed)
    run.go(8, before=count)
    assert run.lines == [f"audit: epoch 0: {changed} although in eval mode: 0.counter"]


def test_buffers_are_not_those_of_frozen_modules_where_nothing_is_frozen() -> None:
    model = network()
    model[2].register_buffer("counter", torch.zeros(1))  # a module without parameters
    for phase in (Phase(names(model), epoch=0), phases(model)[0]):
        run = Run(model, grouped(model), [phase])
        run.go(4, before=lambda step: model[2].counter.add_(1))
        assert run.lines == []


def test_parameter_that_the_network_has_not() -> None:
    model = network()
    with pytest.raises(AuditError, match="should train but is not in the network: gone"):
        Run(model, grouped(model), [Phase(names(model) | {"gone"}, epoch=0)]).go(2)


def test_parameter_twice_in_the_optimizer() -> None:
    model = network()
    optimizer = grouped(model)
    optimizer.param_groups[0]["params"].append(model[5].bias)
    with pytest.raises(AuditError, match="in the optimizer more than once: 5.bias"):
        Run(model, optimizer, [Phase(names(model), epoch=0)]).go(2)


# What must not be taken for a fault


def test_rate_of_zero_that_is_meant() -> None:
    model = network()
    optimizer = grouped(model)
    optimizer.param_groups[0]["lr"] = 0.0
    listed = [Phase(names(model), epoch=0)]
    run = Run(model, optimizer, listed, plan=planned(model, optimizer, listed))
    rows = run.go(4)
    assert run.lines == []
    assert [row["should_move"] for row in rows] == [None, True]


def test_phase_without_steps() -> None:
    model = network()
    audit = FinetuneAudit(model, grouped(model))
    tuning = Tuning(model, phases(model), auditor=audit)
    tuning.train(model)
    tuning.before_step(0, 0)
    tuning.finish(0)
    assert [row["moved"] for row in audit.table()] == [0, 0]


@pytest.mark.parametrize("kind", ["counted", "nan", "overflow"])
def test_steps_that_were_left_out(kind: str) -> None:
    """By a loss that is not finite, with and without a count of them, or by gradients that are not."""
    model = network()
    left_out = [0]

    def skips(step: int) -> bool:
        left_out[0] += 1
        return True

    def spoilt(step: int, value: Tensor) -> Tensor:
        return value if kind == "counted" else value * (torch.nan if kind == "nan" else torch.inf)

    counted = {"skipped": lambda: left_out[0]} if kind == "counted" else {}
    run = Run(model, grouped(model), phases(model), **counted)
    run.go(8, skips=skips, loss=spoilt)
    assert run.lines == []


def test_optimizer_that_never_steps_is_found() -> None:
    model = network()
    with pytest.raises(AuditError, match="head: should move but did not, although gradients reached it"):
        Run(model, grouped(model), phases(model)).go(8, skips=lambda step: True)


@pytest.mark.parametrize("start", [1, 7, 9, 13, 15, 19])
def test_resume_in_the_middle_of_a_phase(start: int) -> None:
    model = network()
    optimizer, listed = grouped(model), phases(model)
    run = Run(model, optimizer, listed, plan=planned(model, optimizer, listed))
    run.go(start=start)
    assert run.lines == []
    assert run.audit.table()[0]["from_step"] == start


def test_going_back_to_an_earlier_phase() -> None:
    model = network()
    run = Run(model, grouped(model), phases(model))
    run.go(10)
    run.tuning.train(model)
    for step in (6, 7, 8, 9):
        run.tuning.before_step(step // EPOCH, step)
    run.audit._drop()
    assert run.lines == []


def test_rates_after_going_back_with_lower_ones() -> None:
    model = network()
    optimizer, listed = grouped(model), phases(model)
    plan = planned(model, optimizer, listed)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
        group["lr"] *= 0.5
    Run(model, optimizer, listed, plan=plan, rate_scale=lambda: 0.5).go(8)
    with pytest.raises(AuditError, match="learning rate 0.05 at step 0, planned 0.1"):
        Run(model, optimizer, listed, plan=plan).go(8)
    Run(model, optimizer, listed, plan=plan, rate_scale=lambda: None).go(8)


@pytest.mark.parametrize(
    ("option", "value", "when", "text"),
    [
        ("lr", 0.2, "after step 4", "group head: learning rate 0.2 at step 4, planned 0.1"),
        ("initial_lr", 0.2, "after step 4", "group head: rate 0.2, planned 0.1"),
        ("weight_decay", 0.5, "after step 4", "group head: weight decay 0.5, planned 0.0"),
        ("momentum", 0.5, "after step 4", "group head: momentum 0.5, 0 when the phase began"),
        ("nesterov", True, "after step 4", "group head: nesterov True, False when the phase began"),
    ],
)
def test_settings_that_change_in_the_middle_of_a_phase(option: str, value: Any, when: str, text: str) -> None:
    model = network()
    optimizer, listed = (
        with_own_rates(grouped(model)),
        [Phase(names(model, *HEAD), epoch=0, frozen_norms=frozenset("14"))],
    )
    group = optimizer.param_groups[1]

    def change(step: int) -> None:
        if step == 2:
            group[option] = value

    with pytest.raises(AuditError, match=rf"{when}\)\n *{text}"):
        Run(model, optimizer, listed, plan=planned(model, optimizer, listed)).go(before=change)


def test_settings_that_change_in_the_last_epoch() -> None:
    model = network()
    optimizer, listed = with_own_rates(grouped(model)), phases(model)
    plan = planned(model, optimizer, listed)

    def change(step: int) -> None:
        if step == 18:
            optimizer.param_groups[1].update(lr=0.3, momentum=0.9)

    run = Run(model, optimizer, listed, plan=plan, due=lambda: [0.1, 0.1], action="warn")
    run.go(before=change)
    assert run.lines == [
        f"audit (step 14, until step 20): group head: {text}"
        for text in ("momentum 0.9, 0 when the phase began", "learning rate 0.3, the schedule has set 0.1")
    ]
    for group in optimizer.param_groups:
        group.update(lr=0.1, momentum=0)
    Run(model, optimizer, listed, plan=plan, due=lambda: None, scheduled={"momentum"}).go(before=change)
    for group in optimizer.param_groups:
        group.update(lr=0.1, momentum=0)
    Run(model, optimizer, listed, plan=plan, due=lambda: None, scheduled=None).go(before=change)


def test_groups_that_change_in_the_middle_of_a_phase() -> None:
    model = network()
    optimizer, listed = grouped(model), [Phase(names(model), epoch=0)]

    def change(step: int) -> None:
        if step == 2:
            body, head = optimizer.param_groups
            body["params"].append(head["params"].pop())

    with pytest.raises(AuditError, match=r"after step 4\)\n *group body: also with 5.bias"):
        Run(model, optimizer, listed, plan=planned(model, optimizer, listed)).go(before=change)


def test_norm_that_never_changes_its_statistics() -> None:
    class FrozenBatchNorm1d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(8))
            self.register_buffer("running_var", torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return (x - self.running_mean) / self.running_var

    model = network()
    model[4] = FrozenBatchNorm1d()
    run = Run(model, grouped(model), [Phase(names(model), epoch=0)])
    run.go(8)
    assert run.lines == []


def test_warnings_instead_of_an_error() -> None:
    model = network()
    run = Run(model, grouped(model), phases(model), action="warn")
    run.go(after_entering=lambda step: model.train() if step else None)
    assert run.lines[0].startswith(
        "audit (epoch 0, after step 2): statistics of norm layers should rest but moved: 1.num"
    )
    assert len(run.lines) == len(set(run.lines))
    assert any("step 14, after step 16" in line for line in run.lines)
    assert len(run.audit.table()) == 6


def test_nothing_is_looked_at_when_it_is_off() -> None:
    model = network()
    run = Run(model, grouped(model), phases(model), action="none", must_train=["5.weight"])
    assert run.go(after_entering=lambda step: model.train()) == []
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_exit_status_and_kind_of_error() -> None:
    model = network()
    with pytest.raises(UserError) as caught:
        FinetuneAudit(model, grouped(model), exit_code=9).begin(
            Phase(names(model), epoch=0), epoch=0, step=0
        ) or FinetuneAudit(model, grouped(model), exit_code=9).begin(Phase(names(model), epoch=3), epoch=0, step=0)
    assert caught.value.exit_code == 9
    assert caught.value.key == "finetune.audit"
    assert "finetune.audit=warn" in str(caught.value)


def test_training_is_the_same_with_an_audit() -> None:
    ends = []
    for action in ("fail", "none"):
        model = network()
        optimizer = grouped(model, AdamW, lr=0.01)
        Run(model, optimizer, phases(model), action=action).go()
        ends.append([*model.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))
