"""Number formats and switches on a real GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.data.loaders import Loader
from lightkit.data.prepare import LoaderOptions
from lightkit.data.tensors import TensorData
from lightkit.device import configure_process
from lightkit.device.switches import Switches
from tests.device.engines import configured

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    configure_process("cpu")  # settings of the process as they come


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the GPU inside is an error."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says of itself that it is young
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def network(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 10))


def pictures() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(16, 10))


class Bench:
    """A model and what trains it, step by step as the loop does."""

    def __init__(self, model: nn.Module, *shape: int, **options: Any) -> None:
        self.engine = configured("cuda", **options)
        self.model = self.engine.place_model(model)
        self.network = self.engine.wrap(self.model)
        self.loss = self.engine.precision.place_loss(nn.CrossEntropyLoss())
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **self.engine.implementation(model))
        generator = torch.Generator().manual_seed(1)
        pairs = [(torch.randn(16, *shape, generator=generator), torch.arange(16) % 10) for _ in range(8)]
        self.batches = [(x.pin_memory(), y.pin_memory()) for x, y in pairs]

    def micro(self, at: int) -> tuple[Tensor, Tensor]:
        self.engine.seed(0, at)
        x, y = self.engine.move(self.batches[at % len(self.batches)])
        with self.engine.autocast():
            output = self.network(x)
            loss = self.loss(output, y)
        self.engine.backward(loss)
        return output.detach(), loss.detach()

    def step(self, at: int, *, window: int = 1) -> tuple[Tensor, Tensor]:
        for number in range(window):
            found = self.micro(at * window + number)
        self.engine.step(self.optimizer, want_norm=True)
        return found

    def losses(self, steps: int, **options: Any) -> Tensor:
        return torch.stack([self.step(at, **options)[1] for at in range(steps)])


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "bf16-true", "fp64"])
def test_every_precision_trains(precision: str) -> None:
    bench = Bench(pictures(), 3, 12, 12, precision=precision, switches=Switches(channels_last=True))
    losses = bench.losses(40)
    assert losses[-8:].mean() < losses[:8].mean()
    assert losses.dtype == (torch.float64 if precision == "fp64" else torch.float32)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16-true"])
def test_a_step_does_not_wait_for_the_gpu(precision: str) -> None:
    bench = Bench(network(), 32, precision=precision, clip_norm=1.0)
    bench.losses(3)
    with no_waiting():
        bench.losses(5)
    assert bench.engine.skipped() >= 0


def test_steps_that_overflow_are_counted_without_waiting() -> None:
    bench = Bench(network(), 32, precision="fp16")
    bench.losses(3)
    before, weight = bench.engine.skipped(), bench.model[0].weight.detach().clone()
    with no_waiting():
        bench.micro(3)
        for parameter in bench.model.parameters():
            parameter.grad.fill_(torch.inf)
        bench.engine.step(bench.optimizer)
    assert bench.engine.skipped() == before + 1
    assert torch.equal(bench.model[0].weight, weight)


def test_fp32_is_exact_and_tf32_is_not() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 comes with compute capability 8.0")
    x = torch.randn(512, 512, device="cuda")
    kernel, image = torch.randn(32, 32, 3, 3, device="cuda"), torch.randn(4, 32, 32, 32, device="cuda")
    exact = [(x.double() @ x.double()).float(), nn.functional.conv2d(image.double(), kernel.double()).float()]
    errors = {}
    for precision in ("fp32", "tf32"):
        configure_process("cuda", precision=precision)
        found = [x @ x, nn.functional.conv2d(image, kernel)]
        errors[precision] = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, exact)]
    assert max(errors["fp32"]) < 1e-5
    assert min(errors["tf32"]) > 1e-5


SPED_UP = [
    Switches(cuda_graphs=True),
    Switches(compile="default"),
    Switches(compile="default", cuda_graphs=True),
    Switches(compile="reduce-overhead"),
]


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("switches", SPED_UP, ids=lambda switches: f"{switches.compile}-{switches.cuda_graphs}")
def test_recorded_and_compiled_steps_compute_the_same(switches: Switches, window: int) -> None:
    torch._dynamo.reset()
    models = [network(), network()]
    for model in models:
        model[2].p = 0.0
    plain, fast = Bench(models[0], 32), Bench(models[1], 32, switches=switches)
    torch.testing.assert_close(fast.losses(12, window=window), plain.losses(12, window=window), rtol=1e-3, atol=1e-4)
    for left, right in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-2, atol=1e-3)
    assert not [line for line in fast.engine.notes.lines if "not compiled" in line]


@pytest.mark.parametrize("switches", [Switches(cuda_graphs=True), Switches(compile="reduce-overhead")])
def test_outputs_of_recorded_steps_outlive_them(switches: Switches) -> None:
    torch._dynamo.reset()
    bench = Bench(network(), 32, switches=switches)
    kept = [bench.step(at)[0] for at in range(8)]
    copies = [output.clone() for output in kept]
    bench.network.eval()
    with torch.no_grad():
        for at in range(8):
            bench.network(bench.engine.move(bench.batches[at])[0])
    torch.cuda.synchronize()
    assert all(torch.equal(output, copy) for output, copy in zip(kept, copies))
    assert len({output.data_ptr() for output in kept}) == len(kept)


def test_recorded_dropout_draws_what_it_is_seeded_with() -> None:
    torch._dynamo.reset()
    bench = Bench(network(), 32, switches=Switches(cuda_graphs=True))
    for at in range(6):
        bench.step(at)
    first, again, other = (bench.micro(at)[0] for at in (7, 7, 15))  # 15 is the same batch under another seed
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_activations_that_are_computed_again_need_no_memory() -> None:
    def made(*patterns: str) -> tuple[list[Tensor], int]:
        torch.manual_seed(0)
        layers = [
            nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.2), nn.Linear(1024, 256)) for _ in range(8)
        ]
        bench = Bench(nn.Sequential(*layers), 4096, 256, switches=Switches(activation_checkpointing=patterns))
        x = torch.randn(4096, 256, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        bench.engine.seed(0, 0)
        bench.network(x).square().sum().backward()
        return [p.grad for p in bench.model.parameters()], torch.cuda.max_memory_allocated()

    (expected, whole), (found, less) = made(), made("?")
    assert all(torch.equal(left, right) for left, right in zip(expected, found, strict=True))
    assert less < 0.6 * whole


class Graph:
    """A batch class of somebody's own."""

    def __init__(self, nodes: Tensor, label: str) -> None:
        self.nodes, self.label = nodes, label

    def to(self, device: Any) -> Graph:
        return Graph(self.nodes.to(device), self.label)


def test_prefetched_batches_arrive_whole_while_others_are_computed() -> None:
    engine = configured("cuda")
    rows = [torch.full((1 << 20,), float(number)) for number in range(40)]
    work = torch.randn(2048, 2048, device="cuda")
    sums = []
    batches = ((row.pin_memory(), {"graph": Graph(row * 2, "n")}) for row in rows)
    for x, rest in engine.prefetch(batches):
        work = (work @ work).clamp(-1, 1)  # so that copies have something to run beside
        sums.append(torch.stack([x.sum(), x.max(), rest["graph"].nodes.max()]))
        assert x.device == rest["graph"].nodes.device == engine.device
    expected = torch.tensor([[row[0] * len(row), row[0], row[0] * 2] for row in rows])
    assert torch.equal(torch.stack(sums).cpu(), expected)


@pytest.mark.parametrize("start", [0, 34, 51])
def test_batches_of_a_loader_arrive_in_blocks_and_whole(start: int) -> None:
    x, y = torch.randn(1000, 7), torch.arange(1000) % 3
    options = LoaderOptions(batch_size=17, shuffle=True, pin_memory=True)
    loader = Loader(TensorData(x, y), torch.arange(1000), options)
    rows, engine = loader.order(1)[start:], configured("cuda")
    work = torch.randn(2048, 2048, device="cuda")
    found = []
    for batch in engine.prefetch(loader.epoch(1, start)):
        work = (work @ work).clamp(-1, 1)
        found.append([part.clone() for part in batch])
        assert all(part.is_cuda for part in batch)
    for part, whole in zip(zip(*found, strict=True), (x, y), strict=True):
        assert torch.equal(torch.cat(part).cpu(), whole[rows])


def test_batches_are_prefetched_without_waiting() -> None:
    bench = Bench(network(), 32)
    bench.losses(2)
    with no_waiting():
        for x, y in bench.engine.prefetch(batch for batch in bench.batches):
            bench.engine.backward(bench.loss(bench.network(x), y))
