from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.device import Engine
from lightkit.device.clip import ClipNorm, ClipValue


@pytest.fixture(autouse=True)
def _as_before():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def test_the_default_is_the_plain_cpu():
    engine = Engine()
    assert engine.device == torch.device("cpu")
    assert not engine.pins_memory
    assert engine.describe().endswith("fp32")


def test_options_reach_their_parts():
    engine = Engine("cpu", precision="bf16", parallel="dp", deterministic=True, threads=1, clip_norm=1.0)
    assert engine.describe().endswith("1 thread, bf16, DataParallel over 1")
    assert isinstance(engine.clip, ClipNorm)
    assert isinstance(Engine("cpu", clip_value=1.0).clip, ClipValue)
    assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled(), "the next run does not inherit it"


def test_wrap_and_unwrap():
    engine = Engine("cpu", precision="bf16", parallel="dp")
    model = nn.Linear(2, 2)
    wrapped = engine.wrap(engine.place(model))
    assert engine.unwrap(wrapped) is model
    with engine.autocast():
        assert wrapped(torch.ones(1, 2)).dtype == torch.float32


def test_a_model_starts_the_same_whatever_was_drawn_before():
    engine = Engine("cpu", seed=5)
    engine.seed_init()
    first = torch.rand(3)
    torch.rand(7)
    engine.seed_init()
    assert torch.equal(torch.rand(3), first)


def test_validation_changes_nothing_in_training():
    def run(validate: bool) -> list[torch.Tensor]:
        engine, dropout, seen = Engine("cpu", seed=1), nn.Dropout(), []
        for step in range(4):
            engine.seed(0, 32 * step)
            seen.append(dropout(torch.ones(20)))
            if validate:
                engine.seed_validation(step)
                torch.rand(step + 1)
        return seen

    assert all(torch.equal(left, right) for left, right in zip(run(True), run(False)))


def test_steps_train():
    engine = Engine("cpu", clip_norm=1.0)
    model = engine.wrap(engine.place(nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = engine.move((torch.randn(64, 3), torch.randn(64, 1)))
    losses = []
    for step in range(30):
        engine.seed(0, step)
        with engine.autocast():
            loss = nn.functional.mse_loss(model(x), y)
        engine.backward(loss)
        assert engine.step(optimizer) is not None
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_missing_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"device\.name"):
        Engine("cuda")
