"""LoRA on every kind of layer, in both ways, under everything that wraps, copies, saves or speeds up a network."""

from __future__ import annotations

import copy
import importlib
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError, UserErrors
from lightkit.finetune.peft.lora import inject_lora, lora_b_names
from lightkit.finetune.peft.lora_targets import SUPPORTED
from lightkit.finetune.peft.lowrank import LowRank
from lightkit.finetune.peft.merging import merged_state
from lightkit.models import TransformerLM
from lightkit.trainer.average import Ema

IMPLS = ("parametrize", "wrap")


class Around(nn.Module):
    """A layer inside of a network, so that its name has a prefix."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.layer(*inputs)
        return found[0] if isinstance(found, tuple) else found


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(8, 2, batch_first=True, **options)


def numbers(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def three_times() -> tuple[Tensor, ...]:
    return (torch.randn(4, 5, 8),) * 3


def tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, 11, (4, 5)),)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "linear": (lambda: nn.Linear(6, 5), numbers((4, 6))),
    "linear of sequences, no bias": (lambda: nn.Linear(6, 5, bias=False), numbers((4, 3, 6))),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, padding_mode="circular"), numbers((4, 4, 9))),
    "conv1d of one sample": (lambda: nn.Conv1d(4, 6, 3), numbers((4, 9))),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False), numbers((4, 4, 7, 6))),
    "conv2d, groups": (
        lambda: nn.Conv2d(4, 6, (3, 1), groups=2, padding=1, padding_mode="reflect"), numbers((4, 4, 7, 5)),
    ),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, stride=(1, 2)), numbers((4, 4, 7, 6))),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, groups=2, padding=1, padding_mode="zeros"), numbers((3, 2, 4, 3, 3))),
    "embedding": (lambda: nn.Embedding(11, 6, padding_idx=2), tokens),
    "embedding without padding": (lambda: nn.Embedding(11, 6), tokens),
    "attention": (attention(), three_times),
    "attention, no bias": (attention(bias=False), three_times),
    "attention, extra keys": (attention(add_bias_kv=True), three_times),
    "attention, sizes": (attention(kdim=6, vdim=5), numbers((4, 5, 8), (4, 3, 6), (4, 3, 5))),
}  # fmt: skip
EVERY = [pytest.param(name, impl, id=f"{name}-{impl}") for name in LAYERS for impl in IMPLS]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def make(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    build, inputs = LAYERS[name]
    return Around(build()), inputs()


def tuned(model: nn.Module, impl: str, *, rank: int = 2, learnt: bool = True, **options: Any) -> list[str]:
    """LoRA on the layer, as if it had learnt something."""
    names = inject_lora(model, {"layer": rank}, alpha=3.0, impl=impl, **options)
    return learn(model, names) if learnt else names


def learn(model: nn.Module, names: list[str]) -> list[str]:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in names:
            parameters[name].normal_(std=0.4)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:  # its row never learns
                for low in (found for found in module.modules() if isinstance(found, LowRank)):
                    low.lora_B[module.padding_idx] = 0
    return names


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_it_starts_at_the_base_and_only_adds(name, impl):
    model, x = make(name)
    before, output = copy.deepcopy(model.state_dict()), model(*x)
    names = tuned(model, impl, learnt=False)
    assert torch.equal(model(*x), output)
    assert [name for name, _ in model.named_parameters() if "lora_" in name] == names
    assert all(parameter.requires_grad for parameter in model.parameters())
    merged = merged_state(model)
    assert merged.keys() == before.keys()
    assert all(torch.equal(merged[key], before[key]) for key in before)


@pytest.mark.parametrize(("name", "impl"), EVERY)
@pytest.mark.parametrize("rank", [1, 2])
def test_merged_is_the_plain_network(name, impl, rank):
    model, x = make(name)
    base, (plain, _) = model(*x), make(name)
    tuned(model, impl, rank=rank, rslora=rank == 2)
    trained = model(*x)
    model.eval(), plain.eval()
    plain.load_state_dict(merged_state(model), strict=True)
    with torch.no_grad():
        output = model(*x)
        assert (output - base).abs().max() > 0.01
        assert torch.allclose(output, trained, atol=1e-6)
        assert torch.allclose(plain(*x), output, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_both_ways_are_the_same_function_with_the_same_gradients(name):
    model, x = make(name)
    other = copy.deepcopy(model)
    mine, its = tuned(model, "parametrize"), tuned(other, "wrap")
    parameters, others = dict(model.named_parameters()), dict(other.named_parameters())
    with torch.no_grad():
        for first, second in zip(mine, its):
            others[second].copy_(parameters[first])
    assert torch.allclose(model(*x), other(*x), atol=1e-5)
    model(*x).square().sum().backward()
    other(*x).square().sum().backward()
    for first, second in zip(mine, its):
        assert torch.allclose(parameters[first].grad, others[second].grad, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_gradients_reach_every_new_parameter_and_the_base_rests(name, impl):
    model, x = make(name)
    model.requires_grad_(False)
    names = tuned(model, impl, learnt=False)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD([parameters[name] for name in names], lr=0.05)
    resting = {name: p.detach().clone() for name, p in parameters.items() if name not in names}
    for _ in range(2):
        model.zero_grad()
        (model(*x) - 1).square().mean().backward()
        optimizer.step()
    assert all(parameters[name].grad.abs().sum() > 0 for name in names)
    assert all(parameters[name].grad is None and torch.equal(parameters[name], resting[name]) for name in resting)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_states_copies_and_pickles_hold_the_same_network(name, impl):
    model, x = make(name)
    fresh = copy.deepcopy(model)
    names = tuned(model, impl)
    assert tuned(fresh, impl) == names
    fresh.load_state_dict(model.state_dict(), strict=True)
    copied, buffer = copy.deepcopy(model), io.BytesIO()
    torch.save(model, buffer)
    pickled = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    expected = model(*x)
    learn(model, names)  # what the others hold is theirs
    again = copy.deepcopy(pickled)
    for other in (fresh, copied, pickled, again):
        assert torch.equal(other(*x), expected)
        assert [key for key, _ in other.named_parameters()] == [key for key, _ in model.named_parameters()]
    assert not torch.equal(model(*x), expected)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_replicas_of_data_parallel(name, impl, monkeypatch):
    replicating = importlib.import_module("torch.nn.parallel.replicate")
    monkeypatch.setattr(replicating, "_get_device_index", lambda device, optional: device)
    monkeypatch.setattr(
        replicating,
        "_broadcast_coalesced_reshape",
        lambda tensors, devices, detach=False: [[tensor * 1 for tensor in tensors] for _ in devices],
    )
    model, x = make(name)
    names = tuned(model, impl)
    replicas = replicating.replicate(model, [0, 1])
    assert all(torch.allclose(replica(*x), model(*x), atol=1e-6) for replica in replicas)
    sum(replica(*x).sum() for replica in replicas).backward()
    gradients = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    (2 * model(*x).sum()).backward()
    for key in names:
        assert torch.allclose(dict(model.named_parameters())[key].grad, gradients[key], atol=1e-4)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_autocast(name, impl):
    model, x = make(name)
    tuned(model, impl)
    exact, (plain, _) = model(*x), make(name)
    plain.load_state_dict(merged_state(model))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(*x)
        if impl == "parametrize":
            assert torch.equal(output, plain(*x))
        assert output.dtype == plain(*x).dtype
    assert torch.allclose(output.float(), exact, atol=0.2)
    output.float().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", ["linear", "conv2d, groups", "embedding", "attention"])
def test_compiled(name, impl):
    model, x = make(name)
    tuned(model, impl, dropout=0.0)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(*x), model(*x), atol=1e-6)
    compiled(*x).square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(*x).square().sum().backward()
    assert all(torch.allclose(a, p.grad, atol=1e-4) for a, p in zip(gradients, model.parameters()))
    torch.compiler.reset()


@pytest.mark.parametrize("impl", IMPLS)
def test_accumulated_gradients_are_those_of_the_whole_batch(impl):
    model, (x,) = make("conv2d, groups")
    names = tuned(model, impl)
    model(x).sum().backward()
    whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for part in x.split(2):
        model(part).sum().backward()
    assert all(torch.allclose(dict(model.named_parameters())[name].grad, whole[name], atol=1e-4) for name in names)


@pytest.mark.parametrize("impl", IMPLS)
def test_moving_averages(impl):
    model, x = make("attention")
    names = tuned(model, impl, learnt=False)
    average, start = Ema(model, 0.5), model(*x)
    learn(model, names)
    average.update()
    now = model(*x)
    with average.applied():
        between = model(*x)
    assert torch.equal(model(*x), now)
    assert not torch.equal(between, now)
    assert not torch.equal(between, start)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_fast_path_of_encoders_sees_what_was_learnt(impl, masked):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    paths = [f"layers.{i}.{part}" for i in range(2) for part in ("self_attn", "linear1", "linear2")]
    plain = copy.deepcopy(model)
    learn(model, inject_lora(model, dict.fromkeys(paths, 2), alpha=4, impl=impl))
    x, hidden = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    hidden[0, 3:] = masked
    given = {"src_key_padding_mask": hidden} if masked else {}
    trained = model(x, **given)
    plain.load_state_dict(merged_state(model))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, says PyTorch
        for network in (model.eval(), plain.eval()):
            assert torch.allclose(network(x, **given)[~hidden], trained[~hidden], atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_an_output_projection_is_never_called(impl):
    model, x = make("attention")
    names = inject_lora(model, {"layer.out_proj": 1}, alpha=1, impl=impl)
    learn(model, names)
    assert names == [f"layer.out_proj.parametrizations.weight.0.lora_{which}" for which in "AB"]
    model(*x).sum().backward()
    assert all(dict(model.named_parameters())[name].grad.abs().sum() > 0 for name in names)


def test_an_output_projection_may_have_a_rank_of_its_own():
    model, _ = make("attention")
    inject_lora(model, {"layer": 3, "layer.out_proj": 1}, alpha=1)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if "lora" in name}
    assert shapes == {
        "layer.parametrizations.in_proj_weight.0.lora_A": (3, 3, 8),
        "layer.parametrizations.in_proj_weight.0.lora_B": (3, 8, 3),
        "layer.out_proj.parametrizations.weight.0.lora_A": (1, 8),
        "layer.out_proj.parametrizations.weight.0.lora_B": (8, 1),
    }


def test_queries_keys_and_values_have_matrices_of_their_own():
    model, _ = make("attention")
    tuned(model, "parametrize", rank=1)
    change = merged_state(model)["layer.in_proj_weight"] - model.layer.parametrizations.in_proj_weight.original
    assert torch.linalg.matrix_rank(change, rtol=1e-4) == 3
    assert [torch.linalg.matrix_rank(part, rtol=1e-4) for part in change.chunk(3)] == [1, 1, 1]


def test_names():
    for impl, start in (("parametrize", "layer.parametrizations.weight.0"), ("wrap", "layer.lora")):
        model, _ = make("linear")
        assert tuned(model, impl) == [f"{start}.lora_A", f"{start}.lora_B"]
        assert lora_b_names(model) == [f"{start}.lora_B"]


def test_the_network_itself_can_be_the_layer():
    for impl, start in (("parametrize", "parametrizations.weight.0"), ("wrap", "lora")):
        layer, x = nn.Linear(4, 3), torch.randn(2, 4)
        names = learn(layer, inject_lora(layer, {"": 2}, alpha=1, impl=impl))
        assert names == [f"{start}.lora_A", f"{start}.lora_B"]
        plain = nn.Linear(4, 3)
        plain.load_state_dict(merged_state(layer))
        assert torch.allclose(plain(x), layer(x), atol=1e-6)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 3 / 4), (True, 3 / 2)])
def test_scale(rslora, scale):
    model, _ = make("linear")
    tuned(model, "parametrize", rank=4, rslora=rslora)
    (low,) = (module for module in model.modules() if isinstance(module, LowRank))
    change = merged_state(model)["layer.weight"] - model.layer.parametrizations.weight.original
    assert torch.allclose(change, scale * low.lora_B @ low.lora_A, atol=1e-6)


@pytest.mark.parametrize("impl", IMPLS)
def test_matrices_come_from_the_generator(impl):
    def drawn(**options: Any) -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(9, 4))
        inject_lora(model, {"0": 2, "1": 2}, alpha=1, impl=impl, **options)
        return [module.lora_A for module in model.modules() if isinstance(module, LowRank)]

    for options in ({}, {"generator": torch.Generator().manual_seed(1)}):
        first = drawn(**options)
        options = {key: torch.Generator().manual_seed(1) for key in options}
        assert all(torch.equal(a, b) for a, b in zip(first, drawn(**options)))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = nn.Linear(4, 4)
    drew = torch.get_rng_state()
    inject_lora(model, {"": 2}, alpha=1, dropout=0.5, impl=impl, generator=torch.Generator())
    assert not torch.equal(drew, state)
    assert torch.equal(torch.get_rng_state(), drew)


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith("embedding")])
@pytest.mark.parametrize("impl", IMPLS)
def test_dropout_is_for_training_only(name, impl):
    model, x = make(name)
    tuned(model, impl, dropout=0.5)
    assert not torch.equal(model(*x), model(*x))
    model.eval()
    assert torch.equal(model(*x), model(*x))
    exact = model(*x)
    model.train()
    mean = torch.stack([model(*x) for _ in range(400)]).mean(dim=0)
    if not name.startswith("attention"):  # that is no linear function of its weights
        assert (mean - exact).abs().max() < 0.35 * max(1.0, exact.abs().max())


def test_what_is_dropped_for_whom():
    x = torch.ones(64, 6)
    for impl, several in (("parametrize", False), ("wrap", True)):
        model, _ = make("linear")
        tuned(model, impl, dropout=0.5)
        assert (len(model(x).unique(dim=0)) > 1) is several


@pytest.mark.parametrize("impl", IMPLS)
def test_embeddings_have_no_dropout_and_padding_stays(impl):
    model, (x,) = make("embedding")
    padding = model(torch.tensor([2]))
    names = tuned(model, impl, dropout=0.5, learnt=False)
    assert torch.equal(model(x), model(x))
    optimizer = torch.optim.SGD([dict(model.named_parameters())[name] for name in names], lr=0.5)
    for _ in range(3):
        (model(x) - 1).square().sum().backward()
        optimizer.step()
    assert torch.equal(model(torch.tensor([2])), padding)


@pytest.mark.parametrize("impl", IMPLS)
def test_an_argument_given_by_name(impl):
    model, (x,) = make("linear")
    tuned(model, impl)
    assert torch.equal(model.layer(input=x), model.layer(x))


def test_rows_with_a_largest_norm():
    model = Around(nn.Embedding(11, 6, max_norm=0.5))
    tuned(model, "parametrize")
    weights, x = copy.deepcopy(model.state_dict()), torch.arange(11)
    output, plain = model(x), Around(nn.Embedding(11, 6, max_norm=0.5))
    plain.load_state_dict(merged_state(model))
    assert output.norm(dim=1).max() <= 0.5 + 1e-4
    assert torch.allclose(plain(x), output, atol=1e-5)
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


def test_sparse_gradients():
    model, x = Around(nn.Embedding(11, 6, sparse=True)), torch.tensor([[1, 3]])
    names = tuned(model, "wrap")
    model(x).sum().backward()
    assert [dict(model.named_parameters())[name].grad.is_sparse for name in names] == [False, True]


def test_low_precision_weights():
    for impl in IMPLS:
        model, x = make("linear")
        model.bfloat16()
        output = model(x[0].bfloat16())
        names = tuned(model, impl, learnt=False)
        assert torch.equal(model(x[0].bfloat16()), output)
        assert {dict(model.named_parameters())[name].dtype for name in names} == {torch.bfloat16}


@pytest.mark.parametrize("impl", IMPLS)
def test_moving_to_another_precision(impl):
    model, (x,) = make("conv2d, groups")
    tuned(model, impl)
    output = model(x)
    assert torch.allclose(model.double()(x.double()).float(), output, atol=1e-5)


def language_model() -> tuple[TransformerLM, Tensor]:
    return TransformerLM(13, 8, dim=8, depth=1, heads=2), torch.randint(0, 13, (2, 8))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("path", ["embed.values", "head"])
def test_tied_layers_stay_tied(path, impl):
    (model, x), (plain, _) = language_model(), language_model()
    before = model(x)
    names = inject_lora(model, {path: 2}, alpha=2, impl=impl)
    assert torch.equal(model(x), before)
    assert len(names) == 2
    learn(model, names)
    assert lora_b_names(model) == names[1:]
    trained = model(x)
    merged = merged_state(model)
    assert merged["head.weight"] is merged["embed.values.weight"]
    plain.load_state_dict(merged, strict=True)
    assert torch.allclose(plain(x), trained, atol=1e-5)
    copied = copy.deepcopy(model)
    learn(copied, names)
    assert torch.equal(merged_state(copied)["head.weight"], merged_state(copied)["embed.values.weight"])
    assert torch.equal(model(x), trained)
    model(x).sum().backward()
    assert all(dict(model.named_parameters())[name].grad.abs().sum() > 0 for name in names)


def test_a_layer_used_twice_is_adapted_once():
    layer = nn.Linear(4, 4)
    model, x = nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 4)
    plain = copy.deepcopy(model)
    for impl in IMPLS:
        network = copy.deepcopy(model)
        assert len(learn(network, inject_lora(network, {"0": 2}, alpha=1, impl=impl))) == 2
        plain.load_state_dict(merged_state(network), strict=True)
        assert torch.allclose(plain(x), network(x), atol=1e-5)


def test_layers_that_cannot_be_one():
    model = nn.Module()
    model.layer, model.table = nn.Linear(4, 4), nn.Bilinear(1, 4, 4)
    model.table.weight = model.layer.weight
    with pytest.raises(UserError, match=r"cannot adapt layer.weight: it is also table.weight, in a Bilinear"):
        inject_lora(model, {"layer": 2}, alpha=1)
    lm, _ = language_model()
    with pytest.raises(UserError, match=r"two ranks for one weight, embed.values.weight and head.weight"):
        inject_lora(lm, {"embed.values": 2, "head": 3}, alpha=1)


def refused() -> Iterator[Any]:
    linear = lambda: nn.Linear(4, 3)  # noqa: E731
    yield (
        lambda: nn.BatchNorm1d(4),
        2,
        {},
        r"match: LoRA cannot adapt layer\n.*Linear, .*MultiheadAttention\n.*BatchNorm1d",
    )
    yield lambda: nn.ConvTranspose1d(4, 4, 1), 2, {}, r"cannot adapt layer\n"
    yield (
        linear,
        4,
        {},
        r"^rank: the rank does not fit layer.weight, a matrix of 3 × 4\n.*1 to 3\n.*4\n.*lora.ranks",
    )
    yield linear, 0, {}, r"the rank does not fit"
    yield lambda: nn.Conv2d(8, 8, 1, groups=8), 2, {}, r"a matrix of 8 × 1\n"
    yield attention(kdim=3, vdim=8), 4, {}, r"fit layer.k_proj_weight, a matrix of 8 × 3"
    yield lambda: nn.LazyLinear(3), 2, {}, r"layer.weight: it has no size yet\n.*that knows its size"
    yield linear, 2, {"alpha": 0}, r"^alpha: LoRA needs a scale"
    yield linear, 2, {"alpha": float("nan")}, r"^alpha: LoRA needs a scale"
    yield linear, 2, {"dropout": 1.0}, r"^dropout: not a probability\n.*0 to below 1"
    yield linear, 2, {"impl": "wrapped"}, r"^impl: no such way to do LoRA\n.*\n.*nearest: wrap"
    yield lambda: nn.Embedding(9, 4, max_norm=1), 2, {"impl": "wrap"}, r"limits the norm .*\n.*\n.*impl=parametrize"
    yield lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), 2, {"impl": "wrap"}, r"divides their gradients"
    yield lambda: nn.Embedding(9, 4, sparse=True), 2, {}, r"gradients are sparse\n.*\n.*lora.impl=wrap"
    yield Odd, 2, {"impl": "wrap"}, r"Odd computes in a way of its own"


class Odd(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight - self.weight.mean(), self.bias)


@pytest.mark.parametrize(("build", "rank", "options", "message"), list(refused()))
def test_what_cannot_be(build, rank, options, message):
    model = Around(build())
    before = list(model.state_dict())
    with pytest.raises(UserError, match=message):
        inject_lora(model, {"layer": rank}, **{"alpha": 1.0, **options})
    assert list(model.state_dict()) == before


@pytest.mark.parametrize("impl", IMPLS)
def test_twice_is_once_too_often(impl):
    model, x = make("linear")
    tuned(model, "wrap")
    output = model(*x)
    with pytest.raises(UserError, match="has LoRA already"):
        tuned(model, impl)
    assert torch.equal(model(*x), output)


def test_nothing_to_adapt():
    with pytest.raises(UserError, match=r"^match: there is no layer for LoRA\n.*Linear"):
        inject_lora(nn.Linear(4, 3), {}, alpha=1)


def test_all_that_is_wrong_is_told_at_once():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(UserErrors, match=r"(?s)adapt 1\n.*fit 0.weight.*fit 2.weight.*3 problems"):
        inject_lora(model, {"0": 9, "1": 1, "2": 9}, alpha=1)


def test_layers_with_a_forward_of_their_own_can_be_parametrized():
    model, x = Around(Odd()), torch.randn(3, 4)
    tuned(model, "parametrize")
    plain = Around(Odd())
    plain.load_state_dict(merged_state(model))
    assert torch.allclose(plain(x), model(x), atol=1e-6)


def test_what_is_supported():
    assert {kind.__name__ for kind in SUPPORTED} == {
        "Linear", "TransposedLinear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "MultiheadAttention",
    }  # fmt: skip
