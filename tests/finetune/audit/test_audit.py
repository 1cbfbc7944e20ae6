"""A plain loop under an audit: nothing is said of healthy runs, and every planted fault is noticed with its names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lightkit.common.errors import UserError
from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import build_plan, phase_steps
from lightkit.finetune.tuning import Tuning
from lightkit.trainer.audit.phases import FinetuneAudit
from lightkit.trainer.audit.rules import group_options, option_faults, rate_faults

EPOCH = 4
BODY, HEAD, STILL = ("0", "1", "3"), ("5",), frozenset("14")
Hook = Callable[["Run", int], Any]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)
    )


def names(model: nn.Module, *paths: str) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters() if not paths or name.split(".")[0] in paths)


def grouped(model: nn.Module, kind: type[Optimizer] = SGD, **options: Any) -> Optimizer:
    """A group for the body, one for the head."""
    groups = []
    for label, paths in (("body", BODY), ("head", HEAD)):
        own = {name: p for name, p in model.named_parameters() if name in names(model, *paths)}
        groups.append({"params": [*own.values()], "param_names": [*own], "name": label})
    return kind(groups, **({"lr": 0.1} | options))


def scheduled(optimizer: Optimizer) -> Optimizer:
    """The same with groups that know their own rates, as under any schedule."""
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def flat(model: nn.Module, **options: Any) -> Optimizer:
    return SGD(model.parameters(), **({"lr": 0.1} | options))


def phases(model: nn.Module) -> list[Phase]:
    """The head alone for two epochs, then everything, then the head again."""
    head = names(model, *HEAD)
    return [
        Phase(head, epoch=0, frozen_norms=STILL),
        Phase(names(model), epoch=2),
        Phase(head, step=14, frozen_norms=STILL),
    ]


def head_alone(model: nn.Module) -> list[Phase]:
    return phases(model)[:1]


def whole(model: nn.Module) -> list[Phase]:
    return [Phase(names(model), epoch=0)]


def planned(model: nn.Module, optimizer: Optimizer, listed: Sequence[Phase]) -> Any:
    moments = phase_steps(listed, steps_per_epoch=EPOCH, total_steps=20)
    rates = {step: [group["lr"] for group in optimizer.param_groups] for own in moments for step in own}
    return build_plan(model, optimizer, listed, steps=moments, rates=rates)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(5, 6, generator=draw), torch.randint(3, (5,), generator=draw)


def nothing(run: Run, step: int) -> None:
    pass


class Run:
    """A plain loop with phases and an audit, and places for mischief."""

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        listed: Sequence[Phase] | None = None,
        *,
        plan: bool = False,
        **options: Any,
    ) -> None:
        self.model: Any = network() if model is None else model
        self.optimizer = grouped(self.model) if optimizer is None else optimizer
        listed = phases(self.model) if listed is None else listed
        self.lines = list[str]()
        if plan:
            options["plan"] = planned(self.model, self.optimizer, listed)
        self.audit = FinetuneAudit(self.model, self.optimizer, report=self.lines.append, **options)
        self.tuning = Tuning(self.model, listed, auditor=self.audit)

    def go(
        self,
        steps: int = 20,
        *,
        start: int = 0,
        before: Hook = nothing,
        entered: Hook = nothing,
        factor: float = 1.0,
        skips: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, Any]]:
        source = batches()
        for step in range(start, steps):
            if step % EPOCH == 0 or step == start:
                self.tuning.train(self.model)
            before(self, step)
            self.tuning.before_step(step // EPOCH, step)
            entered(self, step)
            x, y = next(source)
            (factor * nn.functional.cross_entropy(self.model(x), y)).backward()
            if not skips():
                self.optimizer.step()
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self.audit.after_steps(step + 1)
        self.tuning.finish(steps)
        return self.audit.table()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        (AdamW, {"lr": 0.01, "weight_decay": 0.5}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_nothing_is_said_of_a_healthy_run(kind: type[Optimizer], options: dict[str, Any]) -> None:
    model = network()
    listed = phases(model)
    run = Run(model, grouped(model, kind, **options), listed, plan=True, phases=listed, must_train=names(model, "5"))
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
    norms = [(row["norms"], row["norms_should_move"], row["norms_moved"]) for row in rows if row["group"] == "body"]
    assert norms == [(2, 0, 0), (2, 2, 2), (2, 0, 0)]
    assert json.loads(json.dumps(rows)) == rows
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_training_is_the_same_with_an_audit() -> None:
    ends = []
    for action in ("fail", "none"):
        model = network()
        Run(model, grouped(model, AdamW, lr=0.01), action=action).go()
        ends.append([*model.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))


@pytest.mark.parametrize("bn", ["stats", "train"])
def test_norms_of_a_frozen_part_may_go_on(bn: str) -> None:
    model = network()
    run = Run(model, listed=[Phase(names(model, *("51" if bn == "train" else "5")), epoch=0)])
    rows = {row["group"]: row for row in run.go(8)}
    assert run.lines == []
    assert rows["body" if bn == "stats" else "body (frozen)"]["should_move"] is False
    assert sum(row["norms_moved"] for row in rows.values()) == 2


def test_a_group_may_train_in_part_and_what_never_trains_needs_none() -> None:
    model = network()
    head = [Phase(names(model, "5"), epoch=0, frozen_norms=STILL)]
    for optimizer, expected in (
        (flat(model), [("group 0", 2, True), ("group 0 (frozen)", 6, False)]),
        (
            SGD([{"params": list(model[5].parameters()), "name": "head"}], lr=0.1),
            [("head", 2, True), ("never trained", 6, False)],
        ),
    ):
        rows = Run(model, optimizer, head).go(4)
        assert [(row["group"], row["tensors"], row["should_move"]) for row in rows] == expected


# Planted faults


def at(moment: int, do: Callable[[Run], Any]) -> Hook:
    return lambda run, step: do(run) if step == moment else None


def setting(moment: int, **values: Any) -> Hook:
    return at(moment, lambda run: run.optimizer.param_groups[1].update(values))


def wake(run: Run, step: int) -> None:
    """What a validation does that puts everything back into training mode."""
    if step:
        run.model.train()


def stop(run: Run, step: int, first: int = 0) -> None:
    if step >= first:
        run.optimizer.param_groups[1]["lr"] = 0.0


def leave_gradients(run: Run) -> None:
    """Freeze what has a gradient, and leave it there."""
    run.audit.end(14)
    phase = run.tuning.phases[2]
    for name, parameter in run.model.named_parameters():
        parameter.grad = torch.ones_like(parameter)
        parameter.requires_grad_(name in phase.trainable)
    run.model[1].training = run.model[4].training = False
    run.audit.begin(phase, epoch=3, step=14)


def plant_gradient(run: Run, step: int) -> None:
    run.model[0].weight.grad = torch.zeros_like(run.model[0].weight)  # weight decay alone moves it


def move_to_other_group(run: Run) -> None:
    body, head = run.optimizer.param_groups
    body["params"].append(head["params"].pop())


def only_zero_gradients(run: Run) -> None:
    run.model.forward = lambda x: nn.Sequential.forward(run.model, x) * 0 + run.model[5].bias


def put_back(run: Run) -> None:
    kept = run.model[5].bias.detach().clone()
    run.optimizer.register_step_post_hook(lambda *_: run.model[5].bias.data.copy_(kept))


def halt_schedule(run: Run) -> Any:
    return LambdaLR(run.optimizer, [lambda step: 1.0, lambda step: 0.0])


def later(run: Run, step: int) -> None:
    stop(run, step, 1)


def rest(run: Run, step: int) -> None:
    run.model.eval()


FAULTS: dict[str, dict[str, Any]] = {
    "norm layers that wake up": {"entered": wake},
    "statistics that wake up": {"entered": wake},
    "drift behind a right mode": {"before": at(5, lambda run: run.model[1].running_var.add_(1e-6))},
    "rate of 0": {"before": stop},
    "rate of 0 later": {"before": later},
    "rate of 0, planned otherwise": {"before": stop, "plan": True},
    "rate of 0 in a schedule": {"before": at(0, halt_schedule)},
    "unfreezing": {"before": at(5, lambda run: run.model[0].weight.requires_grad_())},
    "freezing": {"before": at(9, lambda run: run.model[0].weight.requires_grad_(False))},
    "no step at all": {"skips": lambda: True},
    "gradient of before": {"before": at(14, leave_gradients), "momentum": 0.9},
    "gradient after the beginning": {"entered": plant_gradient, "weight_decay": 0.1},
    "other rate": {"before": setting(2, lr=0.2), "listed": head_alone},
    "other own rate": {"before": setting(2, initial_lr=0.2), "listed": head_alone},
    "other decay": {"before": setting(2, weight_decay=0.5), "listed": head_alone},
    "other momentum": {"before": setting(2, momentum=0.5), "listed": head_alone},
    "nesterov": {"before": setting(2, nesterov=True), "listed": head_alone},
    "other group": {"before": at(2, move_to_other_group), "listed": whole, "plan": True},
    "zeros": {"before": at(0, only_zero_gradients), "listed": whole, "weight_decay": 0.1, "steps": 8},
    "put back": {"before": at(0, put_back), "listed": whole, "steps": 6},
    "statistics that rest": {"entered": rest, "listed": lambda m: [Phase(names(m, "5"), epoch=0)], "steps": 4},
    "unknown name": {"listed": lambda m: [Phase(names(m) | {"gone"}, epoch=0)]},
}
TEXTS = r"""
norm layers that wake up
    after step 2\).*should be in eval mode but is in train mode: 1, 4
statistics that wake up
    statistics of norm layers should rest but moved: 1.num_batches_tracked, 1.running_mean
drift behind a right mode
    epoch 0, until step 8\)\n.*should rest but moved: 1.running_var
rate of 0
    before step 0\)\n.*trains with a learning rate of 0: head \(2 tensors\)
rate of 0 later
    epoch 2, before step 8\)\n.*trains with a learning rate of 0: head
rate of 0, planned otherwise
    group head: learning rate 0 at step 0, planned 0.1
rate of 0 in a schedule
    head: should move but did not, although gradients reached it: 5.weight, 5.bias
unfreezing
    until step 8.*body: should rest but moved: 0.weight.*should rest but trains: 0.weight
freezing
    epoch 2, after step 10\)\n.*should train but is frozen: 0.weight
no step at all
    head: should move but did not, although gradients reached it
gradient of before
    frozen but still has a gradient of before.*0.weight, 0.bias, 1.weight
gradient after the beginning
    after step 2\)\n.*body: should rest but moved: 0.weight\n
other rate
    after step 4\)\n *group head: learning rate 0.2 at step 4, planned 0.1
other own rate
    after step 4\)\n *group head: rate 0.2, planned 0.1
other decay
    after step 4\)\n *group head: weight decay 0.5, planned 0.0
other momentum
    after step 4\)\n *group head: momentum 0.5, 0 when the phase began
nesterov
    after step 4\)\n *group head: nesterov True, False when the phase began
other group
    after step 4\)\n *group body: also with 5.bias
zeros
    body: only gradients of 0 reached it: 0.weight, 0.bias
put back
    should move but did not, although gradients reached them: 5.bias\n
statistics that rest
    body: statistics of its norm layers should go on but rest: 1
unknown name
    should train but is not in the network: gone
"""


@pytest.mark.parametrize(("name", "text"), re.findall(r"^(\w.*)\n {4}(.*)", TEXTS, re.M))
def test_a_fault_is_named(name: str, text: str) -> None:
    model, fault = network(), dict(FAULTS[name])
    optimizer = grouped(model, **{key: fault.pop(key) for key in ("momentum", "weight_decay") if key in fault})
    listed = fault.get("listed", phases)(model)
    plan = fault.pop("plan", False)
    if fault.pop("listed", None) is head_alone:
        plan = bool(scheduled(optimizer))
    with pytest.raises(UserError, match=f"(?s){text}") as caught:
        Run(model, optimizer, listed, plan=plan).go(**fault)
    assert (caught.value.exit_code, caught.value.key) == (6, "finetune.audit")
    assert "finetune.audit=warn" in str(caught.value)


def test_new_head_that_no_phase_trains() -> None:
    model = network()
    listed = [Phase(names(model, "0"), epoch=0), Phase(names(model, "0", "3"), epoch=1)]
    with pytest.raises(UserError, match="new, but no phase trains it: 5.bias, 5.weight"):
        FinetuneAudit(model, grouped(model), phases=listed, must_train=sorted(names(model, "5")))
    FinetuneAudit(model, grouped(model), phases=[*listed, *whole(model)], must_train=names(model, "5"))


@pytest.mark.parametrize(
    ("epoch", "step", "text"), [(1, 5, "epoch 1, step 5: too early"), (3, 12, "epoch 3, step 12: too late")]
)
def test_phase_at_the_wrong_moment(epoch: int, step: int, text: str) -> None:
    run = Run()
    run.go(5)
    with pytest.raises(UserError, match=f"the phase begins with epoch 2, but this is {text}"):
        run.audit.begin(run.tuning.phases[1], epoch=epoch, step=step)


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
    before = r"\(was the optimizer built before the network was changed\?\): "
    with pytest.raises(
        UserError,
        match=rf"(?s)trains but is not in the optimizer {before}3.parametrizations.weight.0.scale, 5.weight, 5.bias.*"
        rf"in the optimizer but not in the network {before}5.weight, 5.bias",
    ):
        Run(model, optimizer, whole(model)).go(4)
    optimizer.param_groups[0]["params"].append(model[0].bias)
    with pytest.raises(UserError, match="in the optimizer more than once: 0.bias"):
        Run(model, optimizer, whole(model)).go(2)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(6, 3), nn.Linear(6, 3)
        self.out.weight = self.inside.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) + self.out(x)


def test_weights_that_are_frozen_and_trained_at_once() -> None:
    model, wrong = Tied(), [Phase(frozenset({"out.weight", "out.bias"}), epoch=0)]
    with pytest.raises(UserError, match="one tensor is to train as out.weight and to rest as inside.weight"):
        Run(model, flat(model), wrong).go(4)
    for every in ({"inside.weight", "out.bias"}, {"inside.weight", "out.weight", "out.bias"}):
        Run(model, flat(model), [Phase(frozenset(every), epoch=0)]).go(4)
    model.out.weight = nn.Parameter(model.inside.weight.data)
    with pytest.raises(UserError, match="out.weight trains and inside.weight rests, but they are the same memory"):
        Run(model, flat(model), wrong).go(4)


# Gradients that do not come


def test_branch_that_no_gradient_reaches() -> None:
    model = network()
    model[2].register_forward_hook(lambda module, args, output: output.detach())
    groups = [{"params": list(model[index].parameters()), "name": f"layer {index}"} for index in (0, 1, 3, 5)]
    run = Run(model, SGD(groups, lr=0.1), whole(model))
    with pytest.raises(UserError, match=r"epoch 0, after step 32\)\n.*no gradient has reached group layer 0 in 32 ste"):
        run.go(40)
    assert run.lines[0] == "audit: epoch 0: no gradient has reached group layer 0 in 2 steps"
    with pytest.raises(UserError, match="layer 1: no gradient reached it, and it did not move: 1.weight, 1.bias"):
        Run(model, SGD(groups, lr=0.1), whole(model)).go(8)
    with pytest.raises(UserError, match="group 0: no gradient reached 0.weight, 0.bias, 1.weight, 1.bias; if"):
        Run(model, flat(model), whole(model)).go(6)


def test_single_parameter_without_gradient() -> None:
    model = network()
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    model.register_parameter("none", nn.Parameter(torch.ones(0)))
    unused = "no gradient reached spare; if it is not meant to be used, freeze it: finetune.freeze"
    run = Run(model, flat(model), whole(model))
    run.go(2)
    assert run.lines == [
        "audit: epoch 0: no gradient has reached spare of group group 0 in 2 steps",
        f"audit: epoch 0: group 0: {unused}",
    ]
    with pytest.raises(UserError, match=rf"epoch 0, until step 4\)\n.*group 0: {unused}\n"):
        Run(model, flat(model), whole(model)).go(4)
    with pytest.raises(UserError, match=r"after step 32\)\n.*no gradient has reached spare of group group 0 in 32 st"):
        Run(model, flat(model), whole(model)).go(40)


def test_half_of_what_trains_with_gradients_of_zero() -> None:
    model = network()
    model[3].register_forward_hook(lambda module, args, output: output.detach() + output * 0)
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) is wide]} for wide in (False, True)]
    dull = "only gradients of 0 reached"
    with pytest.raises(UserError, match=f"{dull} half of what trains or more: 0.bias, 1.weight, 1.bias, 3.bias, 0.we"):
        Run(model, SGD(groups, lr=0.1), whole(model)).go(6)
    model = network()
    model[0].bias.register_hook(torch.zeros_like)
    run = Run(model, flat(model), whole(model))
    run.go(6)
    assert run.lines == [f"audit: epoch 0: group 0: {dull} 0.bias"]


def test_single_parameter_whose_steps_are_below_its_resolution() -> None:
    model = network()
    model[0].bias.data.fill_(1e6)
    model[0].bias.register_hook(lambda gradient: gradient * 1e-6)
    run = Run(model, flat(model), whole(model))
    run.go(6)
    assert run.lines == [
        "audit: epoch 0: group 0: did not move, as their steps were too small for their numbers: 0.bias"
    ]


def test_what_starts_at_zero_holds_back_the_gradients_of_others() -> None:
    for steps in (1, 4):
        model = network()
        nn.init.zeros_(model[5].weight)
        run = Run(model, listed=whole(model))
        run.go(steps)
        zero = "body: only gradients of 0 reached it, and it did not move: 0.weight, 0.bias, 1.weight, 1.bias, 3.weight"
        assert run.lines == ([f"audit: epoch 0: {zero} and 1 more"] if steps == 1 else [])


def test_steps_too_small_for_any_bit_are_a_note_at_first() -> None:
    model = network()
    run = Run(model, grouped(model, lr=1e-12), phases(model)[:1])
    run.go(2)
    assert run.lines == [
        "audit: epoch 0: head: should move but did not, as a learning rate of 1e-12 is too small to change float32 "
        "weights of 0.34; raise it: 5.weight, 5.bias"
    ]
    with pytest.raises(UserError, match="head: should move but did not"):
        run.go(3)


# Buffers


def test_other_buffers_of_frozen_modules_are_a_note() -> None:
    model = network()
    model[0].register_buffer("counter", torch.zeros(1))
    model[2].register_buffer("counter", torch.zeros(1))  # a module without parameters

    def count(run: Run, step: int) -> None:
        for place in (0, 2):
            model[place].counter += 1

    changed, head = "buffers of frozen modules changed", names(model, *HEAD)
    held = Phase(head, epoch=0, frozen_norms=STILL, eval_modules=frozenset("0"))
    for listed, lines in (
        (phases(model), [f"{changed}: 0.counter; finetune.dropout=off would hold these in eval mode"]),
        ([held], [f"{changed} although in eval mode: 0.counter"]),
        (whole(model), []),
    ):
        run = Run(model, listed=listed)
        run.go(8, before=count)
        assert run.lines == [f"audit: epoch 0: {line}" for line in lines]


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
    run = Run(model, listed=whole(model))
    run.go(8)
    # The bias before a norm gets gradients of rounding alone, which processors round to 0 or not.
    assert [line for line in run.lines if not line.endswith(": 0.bias")] == []


# What is no fault


def test_rate_of_zero_that_is_meant() -> None:
    model = network()
    optimizer = grouped(model)
    optimizer.param_groups[0]["lr"] = 0.0
    run = Run(model, optimizer, whole(model), plan=True)
    assert [row["should_move"] for row in run.go(4)] == [None, True]
    assert run.lines == []


def test_phase_without_steps() -> None:
    run = Run()
    run.tuning.train(run.model)
    run.tuning.before_step(0, 0)
    run.tuning.finish(0)
    assert [row["moved"] for row in run.audit.table()] == [0, 0]


@pytest.mark.parametrize(("factor", "counted"), [(1.0, True), (torch.nan, False), (torch.inf, False)])
def test_steps_that_were_left_out(factor: float, counted: bool) -> None:
    """By a loss that is not finite, with and without a count of them, or by gradients that are not."""
    skipped = [0]

    def skips() -> bool:
        skipped[0] += 1
        return True

    run = Run(**({"skipped": lambda: skipped[0]} if counted else {}))
    run.go(8, skips=skips, factor=factor)
    assert run.lines == []


@pytest.mark.parametrize("start", [1, 9, 15])
def test_resume_in_the_middle_of_a_phase(start: int) -> None:
    run = Run(plan=True)
    run.go(start=start)
    assert run.lines == []
    assert run.audit.table()[0]["from_step"] == start


def test_going_back_to_an_earlier_phase() -> None:
    run = Run()
    run.go(10)
    run.tuning.train(run.model)
    for step in (6, 7, 8, 9):
        run.tuning.before_step(step // EPOCH, step)
    assert run.lines == []


def test_rates_after_going_back_with_lower_ones() -> None:
    model = network()
    optimizer, listed = grouped(model), phases(model)
    plan = planned(model, scheduled(optimizer), listed)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    for scale in (lambda: 0.5, lambda: None):
        run = Run(model, optimizer, listed, rate_scale=scale)
        run.audit.plan = plan
        run.go(8)
    run = Run(model, optimizer, listed)
    run.audit.plan = plan
    with pytest.raises(UserError, match="learning rate 0.05 at step 0, planned 0.1"):
        run.go(8)


def test_settings_that_change_in_the_last_epoch() -> None:
    change = setting(18, lr=0.3, momentum=0.9)
    for options, texts in (
        (
            {"scheduled_rates": lambda: [0.1, 0.1]},
            ("momentum 0.9, 0 when the phase began", "learning rate 0.3, the schedule has set 0.1"),
        ),
        ({"scheduled_options": {"momentum"}}, ()),
        ({"scheduled_options": None}, ()),
    ):
        model = network()
        run = Run(model, scheduled(grouped(model)), plan=True, action="warn", **options)
        run.go(before=change)
        assert run.lines == [f"audit (step 14, until step 20): group head: {text}" for text in texts]


def test_warnings_instead_of_an_error() -> None:
    run = Run(action="warn")
    run.go(entered=wake)
    moved = "statistics of norm layers should rest but moved: 1.num"
    assert run.lines[0].startswith(f"audit (epoch 0, after step 2): {moved}")
    assert len(run.lines) == len(set(run.lines))
    assert any("step 14, after step 16" in line for line in run.lines)
    assert len(run.audit.table()) == 6


def test_nothing_is_looked_at_when_it_is_off() -> None:
    run = Run(action="none", must_train=["5.weight"])
    assert run.go(entered=lambda run, step: run.model.train()) == []
    assert not any(parameter._post_accumulate_grad_hooks for parameter in run.model.parameters())


# Options and rates of groups


def test_options_that_change_are_named() -> None:
    optimizer = AdamW([{"params": [nn.Parameter(torch.ones(1))], "name": "head"}], betas=(0.9, 0.99))
    before = group_options(optimizer.param_groups)
    optimizer.param_groups[0].update(betas=[0.9, 0.99], lr=3.0, own_counter=7)
    assert option_faults(before, optimizer.param_groups) == []
    optimizer.param_groups[0].update(betas=(0.5, 0.99), weight_decay=0.5)
    assert option_faults(before, optimizer.param_groups) == [
        "group head: weight decay 0.5, 0.01 when the phase began",
        "group head: betas (0.5, 0.99), (0.9, 0.99) when the phase began",
    ]
    assert "weight_decay" not in group_options(optimizer.param_groups, without={"weight_decay"})["head"]
    assert group_options(optimizer.param_groups, without=None) == {}
    tensors = {"params": [], "betas": (torch.tensor(0.5), torch.tensor(0.75))}
    before = group_options([tensors])
    tensors["betas"][0].fill_(0.25)
    assert len(option_faults(before, [tensors])) == 1


def test_rates_that_no_schedule_set_are_named() -> None:
    groups = [{"params": [], "lr": 0.1, "name": "body"}, {"params": [], "lr": torch.tensor(0.2)}]
    assert rate_faults([0.1, 0.2], groups) == rate_faults(None, groups) == []
    assert rate_faults([0.1, 0.4], groups) == ["group group 1: learning rate 0.2, the schedule has set 0.4"]
