"""What cannot train at once is refused, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lightkit.ensemble.alike import difference, gain, refusal
from lightkit.ensemble.stack import Stack, StackMember
from tests.ensemble.test_vectorized import WINE, maker


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
