from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.device import switches as compiling
from lightkit.device.parallel import Parallel
from lightkit.device.switches import Compiled, Compiler, NoCompiler, Switches, make_compiler

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _without_a_c_compiler(monkeypatch):
    """What traces and splits the graphs is the real thing; only no kernels are written."""
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def compiled(model, *, told=None, graphs=False, mode="default") -> nn.Module:
    return Compiler(mode, graphs=graphs, fixed_shapes=True, tell=([] if told is None else told).append).wrap(model)


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


@pytest.mark.thorough
def test_compiled_code_computes_the_same():
    plain, model = network(), network()
    expected, found = trained(plain, plain), trained(compiled(model), model)
    assert all(torch.equal(left, right) for left, right in zip(expected, found, strict=True))


def test_saved_names_are_those_of_the_model():
    model = network()
    wrapped = compiled(model)
    assert isinstance(wrapped, Compiled)
    assert Parallel(CPU).unwrap(wrapped) is model
    assert Parallel(CPU).unwrap(nn.DataParallel(wrapped)) is model
    assert len(list(wrapped.parameters())) == len(list(model.parameters())), "none is counted twice"
    assert not any("_orig_mod" in name for name in model.state_dict())
    wrapped.train(False)
    assert not model.training
    copy.deepcopy(model)


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch, part):
    monkeypatch.setattr(compiling, "BACKEND", failing(part))
    told, plain, model = [], network(), network()
    expected, found = trained(plain, plain), trained(compiled(model, told=told), model)
    assert told == [f"the model is not compiled, and runs as it is: RuntimeError: no compiler for the {part} pass"]
    assert all(torch.equal(left, right) for left, right in zip(expected, found, strict=True))


def test_a_failure_leaves_nothing_behind():
    model, told = network(), []

    def half_way(x):
        model[1](model[0](x))
        torch.rand(3)
        raise RuntimeError("broke")

    wrapped = Compiled(model, half_way, copies=False, tell=told.append)
    torch.manual_seed(3)
    found = wrapped(torch.ones(4, 4) * torch.arange(4.0)[:, None])
    plain = network()
    torch.manual_seed(3)
    assert torch.equal(found, plain(torch.ones(4, 4) * torch.arange(4.0)[:, None]))
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert model[1].num_batches_tracked == 1
    assert told == ["the model is not compiled, and runs as it is: RuntimeError: broke"]


def test_a_mistake_in_the_model_is_told_as_ever():
    told: list[str] = []
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        compiled(network(), told=told)(torch.ones(2, 5))


def test_what_fails_later_is_no_matter_of_compiling():
    model = nn.Linear(2, 2)
    calls: list[int] = []

    def code(x):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("of the model")
        return model(x)

    wrapped = Compiled(model, code, copies=False, tell=calls.append)
    wrapped(torch.ones(1, 2))
    with pytest.raises(ValueError, match="of the model"):
        wrapped(torch.ones(1, 2))


def test_memory_that_ran_out_is_no_matter_of_compiling():
    def code(x):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Compiled(nn.Linear(2, 2), code, copies=False, tell=lambda line: None)(torch.ones(1, 2))


def test_recorded_kernels_hand_out_copies(monkeypatch):
    begun: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(1))
    model, memory = nn.Linear(2, 2), torch.zeros(3, 2, requires_grad=True)
    wrapped = Compiled(model, lambda x: {"a": (memory, "text")}, copies=True, tell=lambda line: None)
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


@pytest.mark.parametrize("graphs", [False, True])
def test_the_first_window_of_batches_has_begun_before_its_first_batch(monkeypatch, graphs):
    begun: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(1))
    compiled(network(), graphs=graphs)
    assert len(begun) == graphs


@pytest.mark.parametrize(
    ("switches", "device", "deterministic", "options"),
    [
        (Switches(), GPU, False, None),
        (Switches(cuda_graphs=True), CPU, False, None),
        (Switches(cuda_graphs=True), GPU, False, {"backend": "cudagraphs", "dynamic": None}),
        (Switches(compile="default"), CPU, True, {"mode": "default", "dynamic": False}),
        (Switches(compile="default", cuda_graphs=True), CPU, False, {"mode": "default", "dynamic": None}),
        (Switches(compile="default", cuda_graphs=True), GPU, False, {"mode": "reduce-overhead", "dynamic": None}),
        (Switches(compile="max-autotune"), GPU, False, {"mode": "max-autotune", "dynamic": None}),
    ],
)
def test_the_way_that_is_asked_for(monkeypatch, switches, device, deterministic, options):
    monkeypatch.setattr(compiling, "BACKEND", "inductor")
    asked: list[dict] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(options) or model)
    compiler = make_compiler(switches, device, deterministic=deterministic, tell=print)
    wrapped = compiler.wrap(network())
    if options is None:
        assert type(compiler) is NoCompiler
        assert isinstance(wrapped, nn.Sequential)
    else:
        assert asked == [options]


def test_more_shapes_are_compiled_than_pytorch_would():
    compiled(network())
    assert torch._dynamo.config.recompile_limit >= 64


@pytest.mark.thorough
@pytest.mark.slow
def test_kernels_are_written(monkeypatch):
    monkeypatch.setattr(compiling, "BACKEND", "inductor")
    told, plain, model = [], network(), network()
    for part in (plain, model):
        part[2].p = 0.0  # compiled code draws its own random numbers
    expected, found = trained(plain, plain), trained(compiled(model, told=told), model)
    assert told == []
    for left, right in zip(expected, found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
