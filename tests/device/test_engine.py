"""The engine: parts of a device put together, and batches that are copied ahead."""

from __future__ import annotations

from contextlib import closing, contextmanager

import pytest
import torch
from torch import nn

from lightkit.device import Engine
from lightkit.device import switches as compiling
from lightkit.device.engine import Notes, PrefetchToDevice
from lightkit.device.stepping import ClipNorm, ClipValue
from lightkit.device.switches import Compiled, Switches
from tests.device.engines import configured
from tests.refused import refused


@pytest.fixture(autouse=True)
def _as_before():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


def test_options_reach_their_parts():
    plain = Engine()
    assert plain.device == torch.device("cpu")
    assert not plain.placement.pins_memory
    assert plain.describe().endswith("fp32")
    assert plain.notes.lines == []
    batches = iter([1, 2])
    assert plain.prefetch(batches) is batches, "without a GPU they come as they are"
    engine = configured("cpu", precision="bf16", parallel="dp", deterministic=True, threads=1, clip_norm=1.0)
    assert engine.describe().endswith("1 thread, bf16, DataParallel over 1")
    assert isinstance(engine.clip, ClipNorm)
    assert isinstance(Engine("cpu", clip_value=1.0).clip, ClipValue)
    assert Engine("cpu", parallel="dp", parallel_options={"dim": 1}).describe().endswith("over 1 in dimension 1")
    assert torch.get_num_threads() == 1
    model = nn.Linear(2, 2)
    wrapped = engine.wrap(engine.place_model(model))
    assert engine.unwrap(wrapped) is model
    with engine.autocast():
        assert wrapped(torch.ones(1, 2)).dtype == torch.float32
    configured("cpu")
    assert not torch.are_deterministic_algorithms_enabled(), "the next run does not inherit it"


def test_validation_changes_nothing_in_training_and_a_model_starts_the_same_whatever_was_drawn_before():
    def run(validate: bool) -> list[torch.Tensor]:
        engine, dropout, seen = Engine("cpu", seed=1), nn.Dropout(), []
        torch.rand(7 * validate)
        engine.seed_init()
        seen.append(torch.rand(3))
        for step in range(4):
            engine.seed(0, 32 * step)
            seen.append(dropout(torch.ones(20)))
            if validate:
                engine.seed_validation(step)
                torch.rand(step + 1)
        return seen

    assert all(torch.equal(left, right) for left, right in zip(run(True), run(False)))


def picture_network() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 2, 3), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(2 * 4 * 4, 5))


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp16", "bf16-true", "fp64"])
def test_everything_together_keeps_the_names_and_trains(monkeypatch, precision):
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    switches = Switches(channels_last=True, compile="default", matmul="high", activation_checkpointing=("0", "3"))
    engine, model = configured("cpu", precision=precision, switches=switches, threads=1), picture_network()
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
    facts = f"1 thread, {precision}, channels last, compiled (default), matmul high, recomputes 0, 3, fused optimizer"
    assert engine.describe(optimizer).endswith(facts)
    assert engine.skipped() == 0


def test_notes_wait_until_somebody_takes_them():
    engine, lines = Engine("cpu", precision="tf32", switches=Switches(cuda_graphs=True)), []
    engine.notes.hand_to(lines.append)
    assert [line.partition(":")[0] for line in lines] == ["device.precision=tf32", "device.cuda_graphs"]
    notes, lines = Notes(), []
    for line in ("one", "two", "one"):
        notes.add(line)
    notes.hand_to(lines.append)
    notes.add("three")
    notes.add("two")
    assert lines == notes.lines == ["one", "two", "three"]


def test_channels_last_of_pictures_volumes_and_what_is_not_there_yet():
    engine = Engine("cpu", switches=Switches(channels_last=True))
    layers = [nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3), nn.LazyConv2d(3, 3), nn.Linear(2, 2)]
    model = engine.place_model(nn.ModuleList(layers))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    seen, inner = [], nn.Identity()
    inner.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    engine.wrap(inner)(torch.rand(2, 3, 4, 4))
    assert seen == [False], "hooks of one's own see what was handed in"
    assert inner(torch.rand(2, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)


class Stream:
    """Writes down what it waits for."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def wait_stream(self, other: Stream) -> None:
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """A machine with streams that compute nothing."""
    lines: list[str] = []
    main = Stream("main", lines)

    @contextmanager
    def within(stream):
        lines.append(f"begin {stream.name}")
        yield
        lines.append(f"end {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side", lines))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", within)
    return lines


def prefetched(events, count=3, error=None):
    def batches():
        try:
            for number in range(count):
                events.append(f"read {number}")
                yield number
            if error:
                raise error
        finally:
            events.append("closed")

    def move(batch):
        events.append(f"copy {batch}")
        return f"batch {batch}"

    return PrefetchToDevice(move, torch.device("cuda", 0))(batches())


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_same_batches_come_in_the_same_order(events, count):
    assert list(prefetched(events, count)) == [f"batch {number}" for number in range(count)]
    assert events.count("closed") == 1


def test_the_next_batch_is_copied_while_one_is_computed(events):
    with closing(prefetched(events)) as ahead:
        assert next(ahead) == "batch 0"
        copy = ["side waits for main", "begin side", "copy {}", "end side"]
        first, second = ([f"read {number}", *(line.format(number) for line in copy)] for number in (0, 1))
        assert events == [*first, "main waits for side", *second]
    assert events[-1] == "closed"
    assert "read 2" not in events, "what was copied and not taken is dropped"
    with pytest.raises(OSError, match="the disk is gone"):
        list(prefetched(events, 1, OSError("the disk is gone")))


def test_a_block_of_batches_is_copied_once_and_again_when_it_changed(events, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    large, small = torch.zeros(1 << 20, 5), torch.arange(24.0).view(8, 3).clone()

    def batches():
        yield from zip(small.split(2), small.flip(0).split(2))  # four batches of two blocks
        small.add_(100)  # a data set that fills its memory anew
        yield small[:2], small[6:]
        yield large[:2], small[:2]

    def move(batch):
        sizes.append([len(part) for part in batch])
        return tuple(part.clone() for part in batch)

    sizes: list[list[int]] = []
    expected = [tuple(part.clone() for part in batch) for batch in batches()]
    small.sub_(100)
    moved = list(PrefetchToDevice(move, torch.device("cuda", 0))(batches()))
    assert all(torch.equal(a, b) for pair in zip(moved, expected, strict=True) for a, b in zip(*pair))
    assert sizes == [[8, 8], [8, 8], [2, 2]], "two blocks, the changed one, and not ten megabytes for two rows"
    assert events.count("main waits for side") == 3


def test_a_missing_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(lambda: Engine("cuda"), "name: ")
