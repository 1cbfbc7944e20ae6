"""Members in a stack are what they are alone: weights, values, ends."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.func import vmap

from lightkit.assembly import Learner, build_learner, build_own, build_shared
from lightkit.config import compose
from lightkit.ensemble.alike import difference, gain, refusal
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.vectorized import VectorTrainer
from lightkit.ensemble.vmapped import Computation, StackedModel, cheap_cross_entropy
from lightkit.trainer import Trainer
from lightkit.trainer.services import Services
from lightkit.trainer.tasks import Supervised

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


@pytest.mark.parametrize("shape", [(3, 8, 5), (3, 4, 5, 6), (2, 4, 3, 6, 6)])
@pytest.mark.parametrize("ignored", [False, True])
def test_cross_entropy_by_plain_operations_gives_the_same_bits(shape, ignored):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    target = torch.randint(shape[2], (*shape[:2], *shape[3:]))
    target[:, 0] = -100 if ignored else target[:, 0]
    found = []
    for cheap in (False, True):
        if cheap:
            with cheap_cross_entropy():
                losses = vmap(lambda x, y: F.cross_entropy(x, y))(x, target)
        else:
            losses = vmap(lambda x, y: F.cross_entropy(x, y))(x, target)
        found.append((losses, *torch.autograd.grad(losses.sum(), x)))
    assert all(torch.equal(one, other) for one, other in zip(*found))


@pytest.mark.parametrize(
    "options",
    [
        {"weight": torch.tensor([1.0, 2.0, 3.0])},
        {"label_smoothing": 0.1},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"ignore_index": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_cross_entropy_with_options_is_what_it_is_alone(options):
    torch.manual_seed(0)
    x, target = torch.randn(6, 3), torch.randint(3, (6,))
    expected = F.cross_entropy(x, target, **options)
    with cheap_cross_entropy():
        assert torch.allclose(F.cross_entropy(x, target, **options), expected)
    assert torch.equal(F.cross_entropy(x, target, **options), expected)


class Tied(nn.Module):
    """Has one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.norm(self.first(x)))
        return found


def test_weights_are_put_in_all_their_places_and_taken_out_again():
    torch.manual_seed(0)
    models = [Tied() for _ in range(3)]
    alone = copy.deepcopy(models)
    x, y = torch.randn(3, 8, 4), torch.randint(4, (3, 8))
    stack = StackedModel(models)
    places = {name: id(tensor) for name, tensor in (*models[0].named_parameters(), *models[0].named_buffers())}
    stack.train()
    found = Computation(stack, models[0], Supervised(), nn.CrossEntropyLoss())((x, y))
    for place, model in enumerate(alone):
        loss = F.cross_entropy(model(x[place]), y[place])
        assert torch.allclose(found.loss[place], loss, atol=1e-6)
        assert torch.allclose(stack.states["norm.running_mean"][place], model.norm.running_mean, atol=1e-6)
    kept = {name: id(tensor) for name, tensor in (*models[0].named_parameters(), *models[0].named_buffers())}
    assert kept == places


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["trainer.ema.decay=0.9"], ""),
        (["scheduler=plateau"], "the schedule goes by the values of one model"),
        (["device.precision=bf16-true"], "device.precision=bf16-true"),
        (
            ["trainer.early_stopping.patience=1", "trainer.validate_unit=step", "trainer.validate_every=2"],
            "in the middle of an epoch",
        ),
        (["trainer.callbacks={own: {_target_: lightkit.trainer.callbacks.Callback}}"], "trainer.callbacks.own"),
        (["finetune=lora"], "fine-tuned"),
    ],
)
def test_what_concerns_a_single_model_is_refused(overrides: list[str], reason: str) -> None:
    make = maker(*WINE, *overrides)
    found = refusal([make(0), make(1)])
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.LBFGS])
def test_optimizers_that_look_at_a_whole_tensor_are_refused(kind: type[torch.optim.Optimizer]) -> None:
    learner = maker(*WINE)(0)
    learner = replace(learner, optimizer=kind(learner.model.parameters()))
    assert f"{kind.__name__} may look at a whole tensor" in refusal([learner])


def test_unlike_members_are_refused() -> None:
    assert "tensors" in refusal([maker(*WINE)(0), maker(*WINE, "model.hidden=[9]")(0)])
    assert "optimizers" in refusal([maker(*WINE)(0), maker(*WINE, "optim.lr=0.5")(0)])
    assert "numbers of steps" in refusal([maker(*WINE)(0), maker(*WINE, rows=lambda seed, rows: rows[:-1])(0)])


def test_the_encoder_of_pytorch_trains_at_once_and_its_kernel_is_back_afterwards() -> None:
    make = maker("data=wine", "data.normalize=standard", "model={_target_: tests.ensemble.networks.Encoder}")
    learners = [make(seed) for seed in range(2)]
    assert torch.backends.mha.get_fastpath_enabled()
    assert not refusal(learners)
    assert not difference(Stack([StackMember(str(number), learner) for number, learner in enumerate(learners)]))
    assert torch.backends.mha.get_fastpath_enabled()


class Shares(nn.Module):
    """Draws random numbers that the stack knows nothing of."""

    def __init__(self, noise: bool) -> None:
        super().__init__()
        self.layer, self.noise, self.count = nn.Linear(13, 3), noise, 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Add noise, or something that differs from call to call."""
        self.count += 1.0
        return self.layer(x) * (torch.rand_like(x[:, :1]) if self.noise else self.count)


@pytest.mark.parametrize(("noise", "reason"), [(True, "cannot be computed"), (False, "comes out differently")])
def test_what_one_batch_shows_to_be_shared_is_refused(noise: bool, reason: str) -> None:
    make = maker(*WINE)
    learners = [make(seed) for seed in range(2)]
    members = []
    for learner in learners:
        model = Shares(noise)
        optimizer = torch.optim.AdamW(model.parameters())
        members.append(StackMember("x", replace(learner, model=model, network=model, optimizer=optimizer)))
    assert reason in difference(Stack(members))


def test_nothing_is_left_behind_by_looking() -> None:
    make = maker(*WINE, "model.norm=batch", "model.dropout=0.3")
    learners = [make(seed) for seed in range(2)]
    stack = Stack([StackMember(f"{seed}", learner) for seed, learner in enumerate(learners)])
    before = {name: tensor.clone() for name, tensor in stack.model.tensors.items()}
    drawn = torch.random.get_rng_state()
    assert difference(stack) == ""
    assert gain(stack, learners)[1]
    assert all(tensor.equal(before[name]) for name, tensor in stack.model.tensors.items())
    assert torch.random.get_rng_state().equal(drawn)
    assert all(weight.grad is None for weight in stack.model.parameters())


def test_steps_are_measured_on_copies_where_the_run_is_long() -> None:
    make = maker(*WINE, "trainer.epochs=40")
    learners = [make(seed) for seed in range(2)]
    stack = Stack([StackMember(f"{seed}", learner) for seed, learner in enumerate(learners)])
    before = {name: tensor.clone() for name, tensor in stack.model.tensors.items()}
    speed, how = gain(stack, learners)
    assert speed is not None
    assert speed > 0
    assert "ms" in how
    assert all(tensor.equal(before[name]) for name, tensor in stack.model.tensors.items())
    assert not learners[0].optimizer.state
