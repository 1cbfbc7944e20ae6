"""Members in a stack are what they are alone: weights, values, ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from lightkit.assembly import Learner, build_learner, build_own, build_shared
from lightkit.config import compose
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.vectorized import VectorTrainer
from lightkit.trainer import Trainer
from lightkit.trainer.services import Services

WINE = ["data=wine", "data.batch_size=16", "model.hidden=[8]", "trainer.epochs=6"]
ATTACKED = ["ensemble.member.epsilon=0.05", "data.normalize=minmax"]
KINDS = {
    "mlp with dropout": [*WINE, "model.dropout=0.3"],
    "bootstrap": WINE,
    "clip, average, accumulation": [*WINE, "trainer.clip_norm=0.1", "trainer.ema.decay=0.9", "trainer.accumulate=2"],
    "norms and limits of values": [*WINE, "model.norm=batch", "trainer.clip_value=0.01", "loss.label_smoothing=0.1"],
    "mixup": [*WINE, "data.mixup.alpha=0.3", "trainer.validate_every=5", "trainer.validate_unit=step"],
    "regression": ["data=diabetes", "model.hidden=[8]", "trainer.epochs=4", "optim=sgd", "optim.lr=0.01"],
    "cnn with batch norm": [
        *["data=digits", "model=cnn", "model.channels=[4,8]", "model.dropout=0.2", "trainer.epochs=2"],
        *["data.batch_size=128", "data.split.limit=640"],
    ],
    "transformer with dropout": [
        *["data=digits", "model=transformer", "model.dim=8", "model.depth=1", "model.heads=2", "model.dropout=0.2"],
        *["trainer.epochs=2", "data.batch_size=128", "data.split.limit=640"],
    ],
    "encoder of PyTorch": [
        *["data=wine", "data.batch_size=16", "data.normalize=standard", "trainer.epochs=2"],
        "model={_target_: tests.ensemble.networks.Encoder}",
        *["optim=sgd", "optim.lr=0.05"],  # Adam would blow up the rounding in the bias of keys, which does nothing
    ],
    "adversarial mlp": [*WINE, *ATTACKED, "model.dropout=0.3", "trainer.accumulate=2", "trainer.clip_norm=0.1"],
    "adversarial regression": ["data=diabetes", *ATTACKED, "model.hidden=[8]", "trainer.epochs=3", "model.dropout=0.2"],
    "adversarial cnn with batch norm": [
        *["data=digits", *ATTACKED, "model=cnn", "model.channels=[4,8]", "model.dropout=0.2", "trainer.epochs=2"],
        *["data.batch_size=128", "data.split.limit=640"],
    ],
}
Make = Callable[[int], Learner]


def maker(*overrides: str, rows: Callable[[int, torch.Tensor], torch.Tensor] = lambda seed, rows: rows) -> Make:
    """Make members of a run, each with a seed and rows of its own."""
    cfg: Any = compose([*overrides, "device=cpu", "logger=quiet", "logger.every_steps=2"]).cfg
    shared = build_shared(cfg, Path("unused"))

    def make(seed: int) -> Learner:
        own: Any = OmegaConf.create(OmegaConf.to_container(cfg))
        own.seed = seed
        parts = build_own(own, shared, Path("unused"))
        data = replace(parts.data, train=parts.data.train.with_rows(rows(seed, parts.data.rows["train"])))
        return build_learner(own, replace(parts, data=data), Path("unused"))

    return make


def goal(learner: Learner) -> dict[str, str]:
    monitor = "val/r2" if learner.data.info.task == "regression" else "val/accuracy"
    return {"monitor": monitor, "mode": "max"}


def together(make: Make, seeds: range) -> Stack:
    stack = Stack([StackMember(f"{seed:02d}", make(seed)) for seed in seeds])
    VectorTrainer(stack, Services(), **goal(stack.members[0].learner)).fit()
    return stack


def compare(member: StackMember, alone: Learner, tolerance: float = 1e-5) -> None:
    assert member.last is not None
    weights = alone.model.state_dict()
    assert weights.keys() == member.last["model"].keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(member.last["model"][name], tensor, atol=tolerance, rtol=0, msg=name)
    assert (member.state.step, member.state.epoch) == (alone.state.step, alone.state.epoch)
    assert member.state.stop_reason == alone.state.stop_reason
    assert member.state.rows == alone.state.rows
    shown = {name: value for name, value in alone.state.last.items() if not name.startswith("speed/")}
    assert {name: member.state.last[name] for name in shown} == pytest.approx(shown, abs=1e-3)


def bootstrap(seed: int, rows: torch.Tensor) -> torch.Tensor:
    return rows[torch.randint(len(rows), (len(rows),), generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("kind", KINDS)
def test_each_member_is_what_it_is_alone(kind: str) -> None:
    make = maker(*KINDS[kind], rows=bootstrap if kind == "bootstrap" else lambda seed, rows: rows)
    stack = together(make, range(3, 6))
    for seed, member in zip(range(3, 6), stack.members):
        alone = make(seed)
        Trainer(alone, Services(), **goal(alone)).fit()
        compare(member, alone)


def test_a_member_that_ends_early_leaves_the_others_alone() -> None:
    make = maker(*WINE, "trainer.epochs=12", "optim.lr=0.05", "trainer.early_stopping.patience=2")
    stack = together(make, range(4))
    ends = []
    for seed, member in enumerate(stack.members):
        alone = make(seed)
        Trainer(alone, Services(), **goal(alone)).fit()
        compare(member, alone)
        ends.append(member.state.epoch)
    assert len(set(ends)) > 1


def test_a_member_whose_loss_is_no_longer_finite_is_left_out() -> None:
    make = maker(*WINE)

    def broken(seed: int) -> Learner:
        learner = make(seed)
        if seed == 1:
            with torch.no_grad():
                next(iter(learner.model.parameters())).fill_(float("inf"))
        return learner

    stack, alone = together(broken, range(3)), make(2)
    assert [member.lost is None for member in stack.members] == [True, False, True]
    Trainer(alone, Services(), **goal(alone)).fit()
    compare(stack.members[2], alone)


@pytest.mark.parametrize(("step", "more"), [(3, []), (8, []), (19, []), (13, ATTACKED)])
def test_it_goes_on_with_the_same_bits(step: int, more: list[str]) -> None:
    make = maker(*WINE, *more, "model.dropout=0.3", "trainer.ema.decay=0.9", "trainer.early_stopping.patience=3")
    whole = together(make, range(3))

    class Killed(Exception):
        pass

    class Until(VectorTrainer):
        def _check_step(self) -> None:
            if self.state.step == step:
                raise Killed

    first = Stack([StackMember(f"{seed:02d}", make(seed)) for seed in range(3)])
    with pytest.raises(Killed):
        Until(first, Services(), **goal(first.members[0].learner)).fit()
    saved = first.state_dict()
    second = Stack([StackMember(f"{seed:02d}", make(seed)) for seed in range(3)])
    second.load_state_dict(saved)
    VectorTrainer(second, Services(), **goal(second.members[0].learner)).fit()
    for one, other in zip(whole.members, second.members):
        assert one.last is not None
        assert other.last is not None
        for name in one.last["model"]:
            assert one.last["model"][name].equal(other.last["model"][name]), name
        assert one.state.logged.hex() == other.state.logged.hex()


def test_a_member_has_the_checkpoint_of_a_run_of_its_own() -> None:
    make = maker(*WINE, "trainer.ema.decay=0.9", "trainer.early_stopping.patience=20")
    stack, alone = together(make, range(2)), make(1)
    Trainer(alone, Services(), **goal(alone)).fit()
    from lightkit.checkpoint import content
    from lightkit.runner.restore import stateful

    mine, theirs = stack.members[1].last, content.gather(**stateful(alone))
    assert mine is not None
    assert mine.keys() == theirs.keys()
    assert mine["state"].keys() == theirs["state"].keys()
    assert mine["callbacks"].keys() == theirs["callbacks"].keys()
    assert mine["optimizer"]["groups"] == theirs["optimizer"]["groups"]
    fresh = make(1)
    content.apply(mine, **stateful(fresh))
    assert fresh.state.step == alone.state.step
    assert fresh.optimizer.state_dict()["state"][0]["step"] == alone.state.step
