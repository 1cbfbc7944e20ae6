"""Compiled models, recorded kernels and the other switches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.device import switches as compiling
from lightkit.device.parallel import Parallel
from lightkit.device.switches import Compiled, Compiler, NoCompiler, Switches, make_compiler
from tests.refused import refused

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _without_a_c_compiler(monkeypatch):
    """What traces and splits the graphs is the real thing; only no kernels are written."""
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")


@pytest.fixture
def begun(monkeypatch) -> list[int]:
    """A one for each time that recording began anew."""
    marks: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    return marks


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def compiled(model, *, lines=None, graphs=False) -> nn.Module:
    return Compiler("default", graphs=graphs, fixed_shapes=True, tell=([] if lines is None else lines).append).wrap(
        model
    )


def trained(call, model) -> list[torch.Tensor]:
    """Gradients, buffers and eval outputs after two steps of different size."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in (6, 4):
        torch.manual_seed(size)
        optimizer.zero_grad()
        call(torch.randn(size, 4)).square().sum().backward()
        optimizer.step()
    call.eval()
    with torch.no_grad():
        outputs = call(torch.ones(3, 4))
    return [outputs, *model.state_dict().values(), *(p.grad for p in model.parameters())]


def failing(part):
    """A backend that cannot compile the forward or the backward pass."""
    from torch._dynamo.backends.common import aot_autograd

    def refuse(graph, inputs):
        raise RuntimeError(f"no compiler for the {part} pass\nand more about it")

    def take(graph, inputs):
        return graph.forward

    chosen = {"fw_compiler": refuse} if part == "forward" else {"fw_compiler": take, "bw_compiler": refuse}
    return aot_autograd(**chosen)


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("part", ["backward", "forward", ""])
def test_compiled_code_computes_the_same_and_what_cannot_be_compiled_runs_as_it_is(monkeypatch, part):
    if part:
        monkeypatch.setattr(compiling, "BACKEND", failing(part))
    lines, plain, model = [], network(), network()
    pairs = zip(trained(plain, plain), trained(compiled(model, lines=lines), model), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
    line = f"the model is not compiled, and runs as it is: RuntimeError: no compiler for the {part} pass"
    assert lines == ([line] if part else [])


def test_saved_names_are_those_of_the_model():
    model = network()
    wrapped = compiled(model)
    assert isinstance(wrapped, Compiled)
    assert Parallel(CPU).unwrap(wrapped) is Parallel(CPU).unwrap(nn.DataParallel(wrapped)) is model
    assert len(list(wrapped.parameters())) == len(list(model.parameters())), "none is counted twice"
    assert not any("_orig_mod" in name for name in model.state_dict())
    wrapped.train(False)
    assert not model.training
    copy.deepcopy(model)
    assert torch._dynamo.config.recompile_limit >= 64, "more shapes are compiled than PyTorch would"


def test_a_failure_leaves_nothing_behind():
    model, lines, x = network(), [], torch.ones(4, 4) * torch.arange(4.0)[:, None]

    def half_way(x):
        model[1](model[0](x))
        torch.rand(3)
        raise RuntimeError("broke")

    torch.manual_seed(3)
    outputs = Compiled(model, half_way, copies=False, tell=lines.append)(x)
    plain = network()
    torch.manual_seed(3)
    assert torch.equal(outputs, plain(x))
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert model[1].num_batches_tracked == 1
    assert lines == ["the model is not compiled, and runs as it is: RuntimeError: broke"]


def test_what_fails_by_itself_is_no_matter_of_compiling():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        compiled(network())(torch.ones(2, 5))
    model, errors = nn.Linear(2, 2), [None, ValueError("of the model"), torch.OutOfMemoryError("CUDA out of memory")]

    def code(x):
        error = errors.pop(0)
        if error:
            raise error
        return model(x)

    wrapped = Compiled(model, code, copies=False, tell=pytest.fail)
    wrapped(torch.ones(1, 2))
    with pytest.raises(ValueError, match="of the model"):
        wrapped(torch.ones(1, 2))
    with pytest.raises(torch.OutOfMemoryError):
        wrapped(torch.ones(1, 2))
    errors.append(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        Compiled(model, code, copies=False, tell=pytest.fail)(torch.ones(1, 2))


def test_recorded_kernels_hand_out_copies(begun):
    model, memory = nn.Linear(2, 2), torch.zeros(3, 2, requires_grad=True)
    wrapped = Compiled(model, lambda x: {"a": (memory, "text")}, copies=True, tell=pytest.fail)
    outputs = wrapped(torch.ones(1, 2))
    assert begun == [], "the gradients of a window of batches live until its step is done"
    assert outputs["a"][0] is not memory
    assert outputs["a"][0].requires_grad
    assert outputs["a"][1] == "text"
    with torch.no_grad():
        wrapped(torch.ones(1, 2))
    assert begun == [1]
    Compiler("none", graphs=True, fixed_shapes=False, tell=print).next_step()
    Compiler("default", graphs=False, fixed_shapes=False, tell=print).next_step()
    assert begun == [1, 1]
    compiled(network(), graphs=False)
    assert begun == [1, 1]
    compiled(network(), graphs=True)  # its first window has begun before its first batch
    assert begun == [1, 1, 1]


@pytest.mark.parametrize(
    ("switches", "device", "deterministic", "options"),
    [
        (Switches(), GPU, False, None),
        (Switches(cuda_graphs=True), CPU, False, None),
        (Switches(cuda_graphs=True), GPU, False, {"backend": "cudagraphs", "dynamic": False}),
        (Switches(compile="default"), CPU, True, {"mode": "default", "dynamic": False}),
        (Switches(compile="default", cuda_graphs=True), CPU, False, {"mode": "default", "dynamic": None}),
        (Switches(compile="default", cuda_graphs=True), GPU, False, {"mode": "reduce-overhead", "dynamic": None}),
        (Switches(compile="max-autotune"), GPU, False, {"mode": "max-autotune", "dynamic": None}),
    ],
)
def test_the_way_that_is_chosen(monkeypatch, begun, switches, device, deterministic, options):
    monkeypatch.setattr(compiling, "BACKEND", "inductor")
    chosen: list[dict] = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: chosen.append(options) or model)
    compiler = make_compiler(switches, device, deterministic=deterministic, tell=print)
    wrapped = compiler.wrap(network())
    assert chosen == ([] if options is None else [options])
    assert (type(compiler) is NoCompiler) == isinstance(wrapped, nn.Sequential) == (options is None)


@pytest.mark.thorough
@pytest.mark.slow
def test_kernels_are_written(monkeypatch):
    monkeypatch.setattr(compiling, "BACKEND", "inductor")
    lines, plain, model = [], network(), network()
    for each in (plain, model):
        each[2].p = 0.0  # compiled code draws its own random numbers
    for left, right in zip(trained(plain, plain), trained(compiled(model, lines=lines), model), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    assert lines == []


def test_what_is_on_is_told():
    for device in (CPU, GPU):
        assert (Switches().describe(device), Switches().idle(device), Switches().graphs(device)) == ("", [], False)
    assert Switches().matmul_level is None
    some = {"channels_last": True, "compile": "default", "matmul": "high", "activation_checkpointing": ["a.*", "head"]}
    on = Switches(**some, cuda_graphs=True, cudnn_benchmark=True, memory_fraction=0.25)
    assert on.describe(GPU) == (
        ", channels last, compiled (default), CUDA graphs, cuDNN benchmark, matmul high, at most 25% of the memory, "
        "recomputes a.*, head"
    )
    assert Switches(cudnn=False).describe(GPU) == ", no cuDNN"
    assert on.describe(CPU) == ", channels last, compiled (default), matmul high, recomputes a.*, head"
    for mode in ("reduce-overhead", "max-autotune"):
        assert (Switches(compile=mode).graphs(GPU), Switches(compile=mode).graphs(CPU)) == (True, False)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            {"cuda_graphs": True, "cudnn_benchmark": True},
            ["device.cuda_graphs: there are CUDA graphs on NVIDIA's GPUs only; nothing is recorded on cpu",
             "device.cudnn_benchmark: there is no cuDNN on cpu"],
        ),
        (
            {"cudnn": False, "memory_fraction": 0.5},
            ["device.cudnn: there is no cuDNN on cpu anyway",
             "device.memory_fraction: this is about the memory of GPUs, and the run is on cpu"],
        ),
        ({"compile": "reduce-overhead"}, ["device.compile=reduce-overhead: there are CUDA graphs"]),
    ],
)  # fmt: skip
def test_what_a_device_cannot_use_is_told(options, lines):
    assert [line[: len(start)] for line, start in zip(Switches(**options).idle(CPU), lines, strict=True)] == lines
    assert Switches(**options).idle(GPU) == []


@pytest.mark.parametrize("name", ["compile", "matmul", "optimizer"])
def test_other_values_are_refused(name):
    refused(lambda: Switches(**{name: "fast"}), f"{name}: not one of the choices … received: 'fast'")
