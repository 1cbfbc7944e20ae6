from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.device import Engine
from lightkit.device import switches as compiling
from lightkit.device.engine import Notes
from lightkit.device.stepping import ClipNorm, ClipValue
from lightkit.device.switches import Compiled, Switches
from tests.device.engines import configured


@pytest.fixture(autouse=True)
def _as_before():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


def test_the_default_is_the_plain_cpu():
    engine = Engine()
    assert engine.device == torch.device("cpu")
    assert not engine.placement.pins_memory
    assert engine.describe().endswith("fp32")


def test_options_reach_their_parts():
    engine = configured("cpu", precision="bf16", parallel="dp", deterministic=True, threads=1, clip_norm=1.0)
    assert engine.describe().endswith("1 thread, bf16, DataParallel over 1")
    assert isinstance(engine.clip, ClipNorm)
    assert isinstance(Engine("cpu", clip_value=1.0).clip, ClipValue)
    assert torch.get_num_threads() == 1
    configured("cpu")
    assert not torch.are_deterministic_algorithms_enabled(), "the next run does not inherit it"


def test_wrap_and_unwrap():
    engine = Engine("cpu", precision="bf16", parallel="dp")
    model = nn.Linear(2, 2)
    wrapped = engine.wrap(engine.place_model(model))
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
    model = engine.wrap(engine.place_model(nn.Linear(3, 1)))
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
    with pytest.raises(UserError, match="name: "):
        Engine("cuda")


ALL = Switches(channels_last=True, compile="default", matmul="high", activation_checkpointing=("0", "3"))


def picture_network() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 2, 3), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(2 * 4 * 4, 5))


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16-true", "fp64"])
def test_everything_together_keeps_the_names_and_trains(monkeypatch, precision):
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    engine, model = configured("cpu", precision=precision, switches=ALL, threads=1), picture_network()
    names = list(model.state_dict())
    network = engine.wrap(engine.place_model(model))
    loss = engine.precision.place_loss(nn.CrossEntropyLoss())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **engine.implementation(model))
    values = []
    for step in range(6):
        engine.seed(0, step % 2)
        x, y = engine.move((torch.rand(4, 3, 8, 8), torch.arange(4)))
        with engine.autocast():
            value = loss(network(x), y)
        engine.backward(value)
        assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)
        engine.step(optimizer)
        values.append(value.item())
    assert values[-1] < values[0]
    assert value.dtype == (torch.float64 if precision == "fp64" else torch.float32)
    assert isinstance(network, Compiled)
    assert engine.unwrap(network) is model
    assert list(model.state_dict()) == names
    assert not [line for line in engine.notes.lines if "compiled" in line]
    told = f"1 thread, {precision}, channels last, compiled (default), matmul high, recomputes 0, 3, fused optimizer"
    assert engine.describe(optimizer).endswith(told)
    assert engine.skipped() == 0


def test_notes_say_what_the_device_does_not_do():
    engine = Engine("cpu", precision="tf32", switches=Switches(cuda_graphs=True))
    told: list[str] = []
    engine.notes.hand_to(told.append)
    assert len(told) == 2
    assert told[0].startswith("device.precision=tf32: TF32 is a format of NVIDIA's GPUs")
    assert told[1].startswith("device.cuda_graphs: there are CUDA graphs on NVIDIA's GPUs only")
    assert Engine("cpu").notes.lines == []


def test_batches_are_handed_on_as_they_come_without_a_gpu():
    batches = iter([1, 2])
    assert Engine("cpu").prefetch(batches) is batches


def test_the_dimension_of_data_parallel():
    engine = Engine("cpu", parallel="dp", parallel_options={"dim": 1})
    assert engine.describe().endswith("DataParallel over 1 in dimension 1")
    assert Engine("cpu", parallel="dp").parallel.dim == 0


def test_channels_last_of_pictures_volumes_and_what_is_not_there_yet():
    engine = Engine("cpu", switches=Switches(channels_last=True))
    model = engine.place_model(
        nn.ModuleList([nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3), nn.LazyConv2d(3, 3), nn.Linear(2, 2)])
    )
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    seen = []
    inner = nn.Identity()
    inner.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    engine.wrap(inner)(torch.rand(2, 3, 4, 4))
    assert seen == [False], "hooks of one's own see what was handed in"
    assert inner(torch.rand(2, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)


def test_notes_wait_until_somebody_takes_them():
    notes, told = Notes(), []
    for line in ("one", "two", "one"):
        notes.add(line)
    notes.hand_to(told.append)
    notes.add("three")
    notes.add("two")
    assert told == notes.lines == ["one", "two", "three"]
