"""Healthy runs pass; every planted fault is found, with the names."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lightkit.common.errors import UserError
from lightkit.finetune.phases import Phase
from lightkit.finetune.tuning import Tuning
from lightkit.trainer.audit.phases import FinetuneAudit
from tests.finetune.audit.running import (
    EPOCH,
    HEAD,
    Run,
    grouped,
    names,
    network,
    phases,
    planned,
    with_own_rates,
)

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
    with pytest.raises(UserError, match=r"should be in eval mode but is in train mode: 1, 4") as caught:
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

    with pytest.raises(UserError, match=r"epoch 0, until step 8\)\n.*should rest but moved: 1.running_var"):
        run.go(before=drift)


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
    with pytest.raises(UserError, match=expected[moment]):
        run.go(before=stop)


def test_learning_rate_of_zero_in_a_schedule() -> None:
    model = network()
    optimizer = grouped(model)
    schedule = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.0])
    run = Run(model, optimizer, phases(model))
    with pytest.raises(UserError, match=r"head: should move but did not, although gradients reached it: 5.weight, 5.b"):
        run.go(schedule=schedule)


def test_new_head_that_no_phase_trains() -> None:
    model = network()
    listed = [Phase(names(model, "0"), epoch=0), Phase(names(model, "0", "3"), epoch=1)]
    with pytest.raises(UserError, match="new, but no phase trains it: 5.bias, 5.weight"):
        FinetuneAudit(model, grouped(model), phases=listed, must_train=sorted(names(model, "5")))
    FinetuneAudit(model, grouped(model), phases=[*listed, Phase(names(model), epoch=2)], must_train=names(model, "5"))


def test_phase_at_the_wrong_moment() -> None:
    model = network()
    listed = phases(model)
    run = Run(model, grouped(model), listed)
    run.go(5)
    with pytest.raises(UserError, match=r"the phase begins with epoch 2, but this is epoch 1, step 5: too early"):
        Tuning(model, [listed[1]], auditor=run.audit)._begin(listed[1], 1, 5)
    run = Run(model, grouped(model), listed)
    run.go(5)
    with pytest.raises(UserError, match=r"begins with epoch 2, but this is epoch 3, step 12: too late"):
        Tuning(model, [listed[1]], auditor=run.audit)._begin(listed[1], 3, 12)


def test_unfreezing_in_the_middle_of_a_phase() -> None:
    model = network()

    def thaw(step: int) -> None:
        if step == 5:
            model[0].weight.requires_grad_()

    with pytest.raises(UserError) as caught:
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

    with pytest.raises(UserError, match=r"epoch 2, after step 10\)\n.*should train but is frozen: 0.weight"):
        run.go(before=freeze)


# Other things that go wrong


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
    with pytest.raises(UserError, match="head: should move but did not, although gradients reached it"):
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
    run.audit._close_record()
    assert run.lines == []


def test_rates_after_going_back_with_lower_ones() -> None:
    model = network()
    optimizer, listed = grouped(model), phases(model)
    plan = planned(model, optimizer, listed)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
        group["lr"] *= 0.5
    Run(model, optimizer, listed, plan=plan, rate_scale=lambda: 0.5).go(8)
    with pytest.raises(UserError, match="learning rate 0.05 at step 0, planned 0.1"):
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

    with pytest.raises(UserError, match=rf"{when}\)\n *{text}"):
        Run(model, optimizer, listed, plan=planned(model, optimizer, listed)).go(before=change)


def test_settings_that_change_in_the_last_epoch() -> None:
    model = network()
    optimizer, listed = with_own_rates(grouped(model)), phases(model)
    plan = planned(model, optimizer, listed)

    def change(step: int) -> None:
        if step == 18:
            optimizer.param_groups[1].update(lr=0.3, momentum=0.9)

    run = Run(model, optimizer, listed, plan=plan, scheduled_rates=lambda: [0.1, 0.1], action="warn")
    run.go(before=change)
    assert run.lines == [
        f"audit (step 14, until step 20): group head: {text}"
        for text in ("momentum 0.9, 0 when the phase began", "learning rate 0.3, the schedule has set 0.1")
    ]
    for group in optimizer.param_groups:
        group.update(lr=0.1, momentum=0)
    Run(model, optimizer, listed, plan=plan, scheduled_rates=lambda: None, scheduled_options={"momentum"}).go(
        before=change
    )
    for group in optimizer.param_groups:
        group.update(lr=0.1, momentum=0)
    Run(model, optimizer, listed, plan=plan, scheduled_rates=lambda: None, scheduled_options=None).go(before=change)


def test_groups_that_change_in_the_middle_of_a_phase() -> None:
    model = network()
    optimizer, listed = grouped(model), [Phase(names(model), epoch=0)]

    def change(step: int) -> None:
        if step == 2:
            body, head = optimizer.param_groups
            body["params"].append(head["params"].pop())

    with pytest.raises(UserError, match=r"after step 4\)\n *group body: also with 5.bias"):
        Run(model, optimizer, listed, plan=planned(model, optimizer, listed)).go(before=change)


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
        FinetuneAudit(model, grouped(model)).begin(Phase(names(model), epoch=0), epoch=0, step=0) or FinetuneAudit(
            model, grouped(model)
        ).begin(Phase(names(model), epoch=3), epoch=0, step=0)
    assert caught.value.exit_code == 6
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
