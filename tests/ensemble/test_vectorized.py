"""Members in a stack are what they are alone: weights, values, ends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor, nn

from lightkit.assembly import Learner, build_learner, build_own, build_shared
from lightkit.checkpoint import content
from lightkit.config import compose
from lightkit.ensemble.alike import difference, gain, refusal, unlikeness
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.vectorized import VectorTrainer, WatchedStack
from lightkit.ensemble.vmapped import Computation, StackedModel, StackedTask
from lightkit.models.mlp import MLP
from lightkit.runner.restore import stateful
from lightkit.trainer import Trainer
from lightkit.trainer.audit.watch import Watcher
from lightkit.trainer.services import Services
from lightkit.trainer.tasks import Supervised
from tests.ensemble.networks import Tied

WINE = ["data=wine", "data.batch_size=16", "model.hidden=[8]", "trainer.epochs=3"]
DIGITS = ["data=digits", "model.dropout=0.2", "trainer.epochs=2", "data.batch_size=128", "data.split.limit=512"]
ATTACKED = ["ensemble.member.epsilon=0.05", "data.normalize=minmax"]
CNN = ["model=cnn", "model.channels=[4,8]"]
KINDS = {
    "clip, average, accumulation": [*WINE, "trainer.clip_norm=0.1", "trainer.ema.decay=0.9", "trainer.accumulate=2"],
    "norms and limits of values": [*WINE, "model.norm=batch", "trainer.clip_value=0.01", "loss.label_smoothing=0.1"],
    "bootstrap, mixup": [*WINE, "data.mixup.alpha=0.3", "trainer.validate_every=5", "trainer.validate_unit=step"],
    "epochs of steps": [*WINE, "trainer.epoch_steps=5", "trainer.early_stopping.target=2"],
    "transformer with dropout": [*DIGITS, "model=transformer", "model.dim=8", "model.depth=1", "model.heads=2"],
    "adversarial mlp": [*WINE, *ATTACKED, "model.dropout=0.3", "trainer.accumulate=2", "trainer.clip_norm=0.1"],
    "regression": ["data=diabetes", "model.hidden=[8]", "trainer.epochs=2", "optim=sgd", "optim.lr=0.01"],
}
TAIL = {
    "mlp with dropout": [*WINE, "model.dropout=0.3"],
    "cnn with batch norm": [*DIGITS, *CNN],
    "encoder of PyTorch": [
        *["data=wine", "data.batch_size=16", "data.normalize=standard", "trainer.epochs=2"],
        "model={_target_: tests.ensemble.networks.Encoder}",
        *["optim=sgd", "optim.lr=0.05"],  # Adam would blow up the rounding in the bias of keys, which does nothing
    ],
    "adversarial regression": ["data=diabetes", *ATTACKED, "model.hidden=[8]", "trainer.epochs=3", "model.dropout=0.2"],
    "adversarial cnn with batch norm": [*DIGITS, *CNN, *ATTACKED],
}
Make = Callable[[int], Learner]


UNLIKE: dict[str, list[float]] = {
    "optim.lr": [0.05, 0.05, 0.01],
    "optim.weight_decay": [0.0, 0.0, 0.2, 0.1],
    "model.dropout": [0.0, 0.3, 0.1],
}


def maker(
    *overrides: str,
    rows: Callable[[int, Tensor], Tensor] = lambda seed, rows: rows,
    unlike: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Make:
    """Make members of a run, each with a seed and rows of its own, and with values of `unlike` in turn."""
    cfg: Any = compose([*overrides, "device=cpu", "logger=quiet", "logger.every_steps=2"]).cfg
    shared = build_shared(cfg, Path("unused"))

    def make(seed: int) -> Learner:
        own: Any = OmegaConf.create(OmegaConf.to_container(cfg))
        own.seed = seed
        for key, values in unlike.items():
            OmegaConf.update(own, key, values[seed % len(values)])
        parts = build_own(own, shared, Path("unused"))
        data = replace(parts.data, train=parts.data.train.with_rows(rows(seed, parts.data.rows["train"])))
        return build_learner(own, replace(parts, data=data), Path("unused"))

    return make


def goal(learner: Learner) -> dict[str, str]:
    monitor = "val/r2" if learner.data.info.task == "regression" else "val/accuracy"
    return {"monitor": monitor, "mode": "max"}


def built(make: Make, seeds: range) -> Stack:
    return Stack([StackMember(f"{seed:02d}", make(seed)) for seed in seeds])


def together(make: Make, seeds: range) -> Stack:
    stack = built(make, seeds)
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


def bootstrap(seed: int, rows: Tensor) -> Tensor:
    return rows[torch.randint(len(rows), (len(rows),), generator=torch.Generator().manual_seed(seed))]


@pytest.mark.thorough(first=3)
@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in TAIL)])
def test_each_member_is_what_it_is_alone(kind: str) -> None:
    options = {**KINDS, **TAIL}[kind]
    make = maker(*options, rows=bootstrap if "bootstrap" in kind else lambda seed, rows: rows)
    stack = together(make, range(3, 5))
    for seed, member in zip(range(3, 5), stack.members):
        alone = make(seed)
        Trainer(alone, Services(), **goal(alone)).fit()
        compare(member, alone)


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", pytest.param("rmsprop", marks=pytest.mark.thorough)])
def test_rates_decays_and_dropouts_may_be_unlike(optimizer: str) -> None:
    more = [
        "scheduler=cosine",
        "trainer.epochs=2",
        "model.norm=batch",
        "trainer.clip_norm=0.5",
        "trainer.ema.decay=0.9",
    ]
    make = maker(*WINE, f"optim={optimizer}", *more, unlike=UNLIKE)
    stack = together(make, range(4))
    for seed, member in enumerate(stack.members):
        alone = make(seed)
        Trainer(alone, Services(), **goal(alone)).fit()
        compare(member, alone)
        assert member.last is not None
        for own, group in zip(member.last["optimizer"]["groups"], alone.optimizer.param_groups):
            assert {key: own[key] for key in ("lr", "initial_lr", "weight_decay")} == pytest.approx(
                {key: group[key] for key in ("lr", "initial_lr", "weight_decay")}, rel=1e-12, abs=0
            )
        assert [each for row in member.history.rows for name, each in row.items() if name.startswith("lr/")]
    learners = [make(seed) for seed in range(2)]
    own = [replace(one, optimizer=torch.optim.ASGD(one.model.parameters())) for one in learners]
    assert "optimizers" in unlikeness(own)
    other = {"model.dropout": [0.3, 0.1]}
    assert not difference(built(maker("data=digits", "data.split.limit=512", *CNN, unlike=other), range(2)))


@pytest.mark.thorough
@pytest.mark.parametrize("unlike", [{}, UNLIKE])
def test_a_member_that_ends_early_leaves_the_others_alone(unlike: Mapping[str, Sequence[float]]) -> None:
    early = ["trainer.epochs=12", "optim.lr=0.05", "trainer.early_stopping.patience=2"]
    make = maker(*WINE, *early, unlike=unlike)
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "more"),
    [(13, ATTACKED), (8, []), (9, UNLIKE), *(pytest.param(step, [], marks=pytest.mark.thorough) for step in (3, 19))],
)
def test_it_goes_on_with_the_same_bits(step: int, more: Any) -> None:
    typed, unlike = (more, {}) if isinstance(more, list) else ([], more)
    often = ["model.dropout=0.3", "trainer.ema.decay=0.9", "trainer.early_stopping.patience=3"]
    make = maker(*WINE, *typed, *often, unlike=unlike)
    whole = together(make, range(3))

    class Killed(Exception):
        pass

    class Until(VectorTrainer):
        def _check_step(self) -> None:
            if self.state.step == step:
                raise Killed

    first = built(make, range(3))
    with pytest.raises(Killed):
        Until(first, Services(), **goal(first.members[0].learner)).fit()
    saved = first.state_dict()
    second = built(make, range(3))
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


def test_weights_are_put_in_all_their_places_and_taken_out_again() -> None:
    torch.manual_seed(0)
    models: list[Any] = [Tied(4, 4) for _ in range(3)]
    alone = copy.deepcopy(models)
    x, y = torch.randn(3, 8, 4), torch.randint(4, (3, 8))
    stack = StackedModel(models)

    def places() -> dict[str, int]:
        return {name: id(tensor) for name, tensor in (*models[0].named_parameters(), *models[0].named_buffers())}

    before = places()
    stack.train()
    output = Computation(stack, models[0], Supervised(), nn.CrossEntropyLoss())((x, y))
    for place, model in enumerate(alone):
        loss = F.cross_entropy(model(x[place]), y[place])
        assert torch.allclose(output.loss[place], loss, atol=1e-6)
        assert torch.allclose(stack.states["block.1.running_mean"][place], model.block[1].running_mean, atol=1e-6)
    assert places() == before


class Centred(MLP):
    """Computes samples that know of each other, though its base does not."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def two_in_a_row(size_in: int, size_out: int, **own: Any) -> nn.Module:
    """Make a network that flattens once more in between."""
    return nn.Sequential(MLP(size_in, 5, **own), nn.ReLU(), MLP(5, size_out, **own))


class Forked(nn.Module):
    """Joins what two layers compute of each sample."""

    by_sample = True

    def __init__(self, size_in: int, size_out: int, **own: Any) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(size_in, 5), nn.Linear(size_in, 5), nn.Linear(10, size_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.one(x), self.other(x)], 1).flatten(1))


WAYS = [(MLP, "features"), (Centred, ""), (two_in_a_row, "samples"), (Forked, "samples")]


@pytest.mark.parametrize(("make", "way"), WAYS)
@pytest.mark.parametrize("ignored", [False, True])
def test_models_are_one_where_each_sample_is_computed_by_itself(
    make: Callable[..., nn.Module], way: str, ignored: bool
) -> None:
    torch.manual_seed(0)
    models = [make(4, 3, hidden=[5], activation="gelu") for _ in range(3)]
    x, y = torch.randn(3, 8, 4), torch.randint(3, (3, 8))
    y[:, 0] = -100 if ignored else y[:, 0]
    alone = [Supervised().step(model, pair, nn.CrossEntropyLoss()) for model, *pair in zip(models, x, y)]
    apart = copy.deepcopy(models)
    stack = StackedModel(models)
    stack.train()
    merged = Computation(stack, models[0], Supervised(), nn.CrossEntropyLoss())
    assert merged._merges == way
    found = merged((x, y))
    for place, step in enumerate(alone):
        torch.testing.assert_close(found.preds[place], step.preds)
        torch.testing.assert_close(found.loss[place], step.loss)
    assert found.weight.tolist() == [8 - ignored] * 3
    stack.eval()
    found = merged((x[0], y[0]), shared=True)
    for place, model in enumerate(apart):
        step = Supervised().step(model, (x[0], y[0]), nn.CrossEntropyLoss())
        torch.testing.assert_close(found.preds[place], step.preds)
        torch.testing.assert_close(found.loss[place], step.loss)
    assert torch.as_tensor(found.weight).expand(3).tolist() == [8 - ignored] * 3
    assert found.target.shape == (3, 8)


REFUSED = """
scheduler=plateau ; the schedule goes by the values of one model
device.precision=bf16-true ; device.precision=bf16-true
trainer.early_stopping.patience=1 trainer.validate_unit=step trainer.validate_every=2 ; in the middle of an epoch
trainer.callbacks={own:{_target_:lightkit.trainer.callbacks.Callback}} ; trainer.callbacks.own
trainer.swa.from_epoch=1 ; the average of the weights is of another kind
finetune=lora ; fine-tuned
"""


def test_what_concerns_a_single_model_is_refused() -> None:
    averaged = [maker(*WINE, "trainer.ema.decay=0.9")(seed) for seed in range(2)]
    assert (refusal(averaged[0]), unlikeness(averaged)) == ("", "")
    for typed, reason in (line.split(" ; ") for line in REFUSED.strip().splitlines()):
        assert reason in refusal(maker(*WINE, *typed.split())(0)), typed
    learner = maker(*WINE)(0)
    for kind in (torch.optim.Adafactor, torch.optim.LBFGS):
        made = replace(learner, optimizer=kind(learner.model.parameters()))
        assert f"{kind.__name__} may look at a whole tensor" in refusal(made)
    assert "tensors" in unlikeness([learner, maker(*WINE, "model.hidden=[9]")(0)])
    assert "optimizers" in unlikeness([learner, maker(*WINE, "optim.betas=[0.5,0.9]")(0)])
    assert "numbers of steps" in unlikeness([learner, maker(*WINE, rows=lambda seed, rows: rows[:-1])(0)])


def test_the_encoder_of_pytorch_trains_at_once_and_its_kernel_is_back_afterwards() -> None:
    make = maker("data=wine", "data.normalize=standard", "model={_target_: tests.ensemble.networks.Encoder}")
    assert torch.backends.mha.get_fastpath_enabled()
    assert not difference(built(make, range(2)))
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


def checked() -> nn.Module:
    """Make a network that `vmap` cannot compute, and that several models are as one."""
    layer = nn.Linear(13, 3)
    layer.register_forward_hook(lambda _layer, _inputs, output: output if output.isfinite().all() else None)
    return layer


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Shares(True), "cannot be computed"),
        (lambda: Shares(False), "comes out differently"),
        (checked, "data-dependent control flow"),
    ],
)
def test_what_one_batch_shows_to_be_shared_is_refused(build: Callable[[], nn.Module], reason: str) -> None:
    make, members = maker(*WINE), []
    for seed in range(2):
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        members.append(StackMember("x", replace(make(seed), model=model, network=model, optimizer=optimizer)))
    assert reason in difference(Stack(members))


def test_nothing_is_left_behind_by_looking_and_measuring() -> None:
    make = maker(*WINE, "model.norm=batch", "model.dropout=0.3", "trainer.epochs=40")
    learners = [make(seed) for seed in range(2)]
    stack = Stack([StackMember(f"{seed}", learner) for seed, learner in enumerate(learners)])
    before = {name: tensor.clone() for name, tensor in stack.model.tensors.items()}
    drawn = torch.random.get_rng_state()
    assert difference(stack) == ""
    assert torch.random.get_rng_state().equal(drawn)
    speed, how = gain(stack, learners)  # of a run that is long: measured on copies
    assert speed is not None
    assert (speed > 0, "ms" in how) == (True, True)
    assert all(tensor.equal(before[name]) for name, tensor in stack.model.tensors.items())
    assert all(weight.grad is None for weight in stack.model.parameters())
    assert not learners[0].optimizer.state
    short = [maker(*WINE)(seed) for seed in range(2)]
    assert "too few steps to measure" in gain(Stack([StackMember("x", one) for one in short]), short)[1]


SGD = [*WINE, "optim=sgd", "optim.lr=0.05", "optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0"]
FIRST = "layers.linear0.weight"


class Faulty(VectorTrainer):
    """Does something after each step, before the watch looks."""

    act: Callable[[Any], None] = staticmethod(lambda trainer: None)

    def _check_step(self) -> None:
        if self.state.step:
            self.act(self)
        super()._check_step()


def watched(
    *overrides: str,
    members: int = 3,
    every: int | None = 4,
    action: str = "warn",
    act: Callable[[Any], None] = lambda trainer: None,
    change: Callable[[nn.Module], Any] = lambda model: None,
    unlike: Mapping[str, Sequence[float]] | None = None,
) -> tuple[Stack, list[str]]:
    """Train members; `act` is called after each step, `change` with each model. Returns them and what was said."""
    make, told = maker(*(overrides or SGD), unlike=unlike or {}), list[str]()

    def changed(seed: int) -> Learner:
        learner = make(seed)
        change(learner.model)
        return learner

    stack = Stack([StackMember(f"{seed:02d}", changed(seed)) for seed in range(members)])
    watch = None
    if every is not None:
        watch = Watcher(every, action=action, tell=told.append, see=lambda learner: WatchedStack(stack))
    trainer = Faulty(stack, Services(), watch=watch, **goal(stack.members[0].learner))
    trainer.act = act  # type: ignore[method-assign]
    trainer.fit()
    return stack, told


def freeze(model: nn.Module) -> None:
    model.get_parameter(FIRST).requires_grad_(False)


def row(trainer: Any, name: str, place: int) -> torch.Tensor:
    found: torch.Tensor = trainer.stack.model.weights[name].data[place]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "every"), [("clip, average, accumulation", 1), ("norms and limits of values", 3)])
def test_sound_members_train_with_the_same_bits_and_nothing_is_told(kind: str, every: int) -> None:
    plain, _ = watched(*KINDS[kind], every=None)
    stack, told = watched(*KINDS[kind], every=every)
    assert told == []
    for one, other in zip(plain.members, stack.members):
        assert one.last is not None
        assert other.last is not None
        assert all(tensor.equal(other.last["model"][name]) for name, tensor in one.last["model"].items())
        assert one.state.logged.hex() == other.state.logged.hex()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["adversarial mlp", *TAIL])
def test_nothing_is_told_of_sound_members_of_other_kinds(kind: str) -> None:
    assert watched(*{**KINDS, **TAIL}[kind], every=2)[1] == []


def test_nothing_is_told_of_sound_members_with_rates_of_their_own() -> None:
    assert watched(unlike=UNLIKE)[1] == watched(*WINE, unlike=UNLIKE, every=2)[1] == []


def test_members_that_leave_are_no_longer_looked_at() -> None:
    early = [*WINE, "trainer.epochs=12", "optim.lr=0.05", "trainer.early_stopping.patience=2"]
    nudged = list[str]()

    def nudge(trainer: Any) -> None:
        if len(trainer.stack.active) < 4 and not nudged:
            row(trainer, FIRST, -1)[0, 0] += 1e-3
            nudged.append(trainer.stack.active[-1].name)

    stack, told = watched(*early, members=4, act=nudge, change=freeze)
    assert len({member.state.epoch for member in stack.members}) > 1
    assert [line.partition(": ")[2] for line in told] == [f"member {nudged[0]}: frozen, but moved: {FIRST}"]


def test_something_of_two_members_that_trains_and_rests() -> None:
    kept: dict[int, torch.Tensor] = {}

    def hold(trainer: Any) -> None:
        for place in (0, 2):
            own = row(trainer, FIRST, place)
            own.copy_(kept.setdefault(place, own.clone()))

    line = f"watch (after step 8): members 00, 02: trains, but did not move, although gradients reach it: {FIRST}"
    assert watched(act=hold)[1] == [line]


@pytest.mark.parametrize(("name", "place"), [(FIRST, 1), ("layers.norm0.running_mean", 2)])
def test_an_evaluation_that_changes_one_member(name: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = StackedTask.step

    def changing(self: Any, model: Any, batch: Any, criterion: Any) -> Any:
        model.tensors[name].data[place] += 1e-3
        return step(self, model, batch, criterion)

    monkeypatch.setattr(StackedTask, "step", changing)
    _, told = watched(*SGD, "model.norm=batch")
    assert f": member 0{place}: an evaluation changed {name}" in told[0]


def test_a_member_that_is_lost_is_no_fault() -> None:
    def spoil(trainer: Any) -> None:
        if trainer.state.step == 2:
            for weight in trainer.stack.model.weights.values():
                weight.data[1] = float("nan")

    stack, told = watched("trainer.validate_unit=step", "trainer.validate_every=100", *SGD, every=1, act=spoil)
    assert stack.members[1].lost is not None
    assert told == []
