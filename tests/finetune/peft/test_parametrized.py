"""LoRA on layers that make their weights: weight norm, spectral norm and other parametrizations, new and old."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations as new

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.merging import merge, merged_state, plain_names
from tests.conftest import Outcome
from tests.finetune.whole import SHORT, content, same_bits

Cli = Callable[..., Outcome]
IMPLS = ("parametrize", "wrap")


def old_weight_norm(layer: nn.Module, **options: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer, **options)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear, weight norm": (lambda: new.weight_norm(nn.Linear(6, 5)), (4, 6)),
    "linear, one norm": (lambda: new.weight_norm(nn.Linear(6, 5), dim=None), (4, 6)),
    "conv, weight norm": (lambda: new.weight_norm(nn.Conv2d(4, 6, 3, groups=2)), (3, 4, 5, 5)),
    "linear, spectral norm": (lambda: new.spectral_norm(nn.Linear(6, 5)), (4, 6)),
    "conv, spectral norm": (lambda: new.spectral_norm(nn.Conv1d(4, 6, 3)), (3, 4, 7)),
    "linear, orthogonal": (lambda: new.orthogonal(nn.Linear(6, 6)), (4, 6)),
    "linear, old weight norm": (lambda: old_weight_norm(nn.Linear(6, 5)), (4, 6)),
    "conv, old weight norm": (lambda: old_weight_norm(nn.Conv2d(4, 6, 3), dim=1), (3, 4, 5, 5)),
    "linear, old spectral norm": (lambda: nn.utils.spectral_norm(nn.Linear(6, 5)), (4, 6)),
}
EVERY = [(name, impl) for name in LAYERS for impl in IMPLS if impl == "wrap" or "old" not in name]
MERGING = [(name, impl) for name, impl in EVERY if "weight norm" in name or "one norm" in name]
OTHERS = [pair for pair in EVERY if pair not in MERGING]


def network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    return nn.Sequential(build()).eval(), torch.randn(shape)


def adapted(name: str, impl: str, *, learnt: bool = True) -> tuple[nn.Module, Tensor]:
    model, x = network(name)
    for parameter in model.parameters():  # so that a norm is not that of the weight it was made of
        parameter.data.mul_(1.5)
    model(x)
    names = inject_lora(model, {"0": 2}, alpha=3.0, impl=impl)
    for key, parameter in model.named_parameters():
        if learnt and key in names:
            parameter.data.normal_(std=0.3)
    return model, x


def product(model: nn.Module) -> Tensor:
    """What LoRA adds to the weight, computed from the matrices alone."""
    (a,) = (p for key, p in model.named_parameters() if key.endswith("lora_A"))
    (b,) = (p for key, p in model.named_parameters() if key.endswith("lora_B"))
    return (1.5 * b @ a).detach()


def computed(model: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """What the layer gives with a weight."""
    layer = model[0]
    if isinstance(layer, nn.Linear):
        return F.linear(x, weight, layer.bias)
    return layer._conv_forward(x, weight, layer.bias)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_the_product_is_added_to_what_the_layer_makes(name: str, impl: str) -> None:
    plain, _ = adapted(name, impl, learnt=False)
    base = plain[0].weight.detach().clone()
    model, x = adapted(name, impl)
    with torch.no_grad():
        wanted = computed(model, x, base + product(model).view(base.shape))
        torch.testing.assert_close(model(x), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(plain(x), computed(plain, x, base), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_the_norm_rests_and_the_matrices_learn(name: str, impl: str) -> None:
    model, x = network(name)
    model.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    names = inject_lora(model, {"0": 2}, alpha=3.0, impl=impl)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD([parameters[key] for key in names], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    assert all(parameters[key].grad.abs().sum() > 0 for key in names)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key not in names)
    assert plain_names(model) == {key: key for key in before}


@pytest.mark.parametrize(("name", "impl"), MERGING)
def test_merged_is_the_plain_layer_with_its_norm(name: str, impl: str) -> None:
    model, x = adapted(name, impl)
    plain, _ = network(name)
    output, state = model(x), copy.deepcopy(model.state_dict())
    plain.load_state_dict(merged_state(model), strict=True)
    torch.testing.assert_close(plain(x), output, atol=1e-5, rtol=1e-5)
    with merge(model):
        assert not all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        torch.testing.assert_close(model(x), output, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(("name", "impl"), OTHERS)
def test_what_a_norm_cannot_make_is_not_merged(name: str, impl: str) -> None:
    model, x = adapted(name, impl)
    output, state = model(x), copy.deepcopy(model.state_dict())
    for merging in (merged_state, merge):
        with pytest.raises(UserError, match=r"cannot be merged[\s\S]*0.weight \(LoRA after \w+, which makes no such"):
            merging(model)
    assert torch.equal(model(x), output)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(("name", "impl"), [pair for pair in EVERY if "old" not in pair[0]])
def test_states_and_copies_hold_the_same_network(name: str, impl: str) -> None:
    model, x = adapted(name, impl)
    fresh, _ = adapted(name, impl, learnt=False)
    fresh.load_state_dict(model.state_dict(), strict=True)
    for other in (fresh, copy.deepcopy(model)):
        assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("impl", IMPLS)
def test_low_precision(impl: str) -> None:
    model = nn.Sequential(new.weight_norm(nn.Linear(6, 5))).to(torch.bfloat16).eval()
    names = inject_lora(model, {"0": 2}, alpha=3.0, impl=impl)
    assert {dict(model.named_parameters())[key].dtype for key in names} == {torch.bfloat16}
    for key in names:
        dict(model.named_parameters())[key].data.normal_(std=0.3)
    plain = nn.Sequential(new.weight_norm(nn.Linear(6, 5))).to(torch.bfloat16).eval()
    plain.load_state_dict(merged_state(model))
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    torch.testing.assert_close(plain(x), model(x), atol=0.05, rtol=0.05)


def test_looking_at_a_weight_is_no_step_of_its_norm() -> None:
    model, _ = network("linear, spectral norm")
    model.train()
    before = copy.deepcopy(model.state_dict())
    inject_lora(model, {"0": 2}, alpha=3.0)
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert model[0].parametrizations.weight[0].training


def test_a_packed_projection_with_weight_norm() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.MultiheadAttention(8, 2, batch_first=True)).eval(), torch.randn(2, 3, 8)
    new.weight_norm(model[0], "in_proj_weight")
    plain = copy.deepcopy(model)
    names = inject_lora(model, {"0": 2}, alpha=3.0)
    assert "0.parametrizations.in_proj_weight.1.lora_A" in names
    for key in names:
        dict(model.named_parameters())[key].data.normal_(std=0.3)
    plain.load_state_dict(merged_state(model), strict=True)
    torch.testing.assert_close(plain[0](x, x, x)[0], model[0](x, x, x)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in LAYERS if "old" in name])
def test_a_weight_that_a_hook_makes_anew_needs_a_path_beside_it(name: str) -> None:
    model, _ = network(name)
    with pytest.raises(UserError, match=r"a hook makes its weight anew[\s\S]*finetune.lora.impl=wrap") as caught:
        inject_lora(model, {"0": 2}, alpha=3.0)
    assert (caught.value.key, caught.value.argument) == (None, "impl")


def test_an_attention_with_such_a_hook_is_told_what_to_do() -> None:
    attention = old_weight_norm(nn.MultiheadAttention(8, 2), name="in_proj_weight")
    with pytest.raises(UserError, match=r"a hook makes[\s\S]*fix: +one of torch.nn.utils.parametrizations"):
        inject_lora(nn.Sequential(attention), {"0": 2}, alpha=3.0, impl="wrap")


def test_layers_that_share_what_they_make_their_weights_of() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    new.spectral_norm(model[0]), new.spectral_norm(model[1])
    with pytest.raises(UserError, match=r"0\.parametrizations\.weight\.original, of which it is made, is also 1\."):
        inject_lora(model, {"0": 2}, alpha=3.0)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_second_lora_is_refused(impl: str) -> None:
    model, _ = adapted("linear, weight norm", impl)
    with pytest.raises(UserError, match="it has LoRA already"):
        inject_lora(model, {"0": 2}, alpha=3.0, impl="wrap")


def test_labels_find_normed_layers() -> None:
    model = nn.Sequential(new.weight_norm(nn.Linear(6, 5)), nn.Linear(5, 2))
    assert NetworkNames(model, head="1").find_modules(["@linear"], argument="k", kinds=(nn.Linear,)) == ["0"]


class Normed(nn.Module):
    """A network of which one layer is normed.

    Args:
        norm: `new`, `spectral` or `old`.
    """

    def __init__(self, in_features: int, num_classes: int, norm: str = "new") -> None:
        super().__init__()
        kinds = {"new": new.weight_norm, "spectral": new.spectral_norm, "old": old_weight_norm}
        self.body, self.head = kinds[norm](nn.Linear(in_features, 8)), nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


@pytest.mark.thorough
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("norm", "impl"), [("new", "parametrize"), ("old", "wrap"), ("spectral", "parametrize")])
def test_a_run_trains_goes_on_and_is_merged(cli: Cli, project: Path, norm: str, impl: str) -> None:
    network = ("model=custom", f"model._target_={__name__}.Normed", f"+model.norm={norm}", "data=wine", *SHORT)
    assert cli("train", *network, "hydra.run.dir=base", "trainer.epochs=1").code == 0
    tuning = (*network, "finetune=lora", "finetune.weights.path=base", f"finetune.lora.impl={impl}")
    tuning = (
        *tuning,
        "finetune.lora.match=[body]",
        "finetune.lora.rank=2",
        "checkpoint.export=weights",
        "trainer.epochs=1",
    )
    assert cli("train", *tuning, "hydra.run.dir=whole").code == 0
    kill = "++trainer.callbacks.kill={_target_: tests.runner.test_run.KillAt, step: 5}"
    assert cli("train", *tuning, kill, "checkpoint.every_steps=3", "hydra.run.dir=run").code != 0
    done = cli("resume", "run", "~trainer.callbacks.kill")
    assert done.code == 0, done.err
    one, other = content(project / "whole")["model"], content(project / "run")["model"]
    assert all(same_bits(tensor, other[name]) for name, tensor in one.items())
    before = content(project / "base")["model"]
    moved = {name for name in before if not same_bits(before[name], one[name])}
    assert moved - {f"body.parametrizations.weight.0.{name}" for name in ("_u", "_v")} == {"head.weight", "head.bias"}
    done = cli("ckpt", "merge", "run", "merged.pt")
    if norm == "spectral":
        assert done.code == 2
        assert "body.weight (LoRA after _SpectralNorm" in done.err
        assert set(torch.load(project / "run" / "weights.pt", weights_only=True)) == set(one)
        return
    assert done.code == 0, done.err
    assert set(torch.load("merged.pt", weights_only=True)) == set(before)
    assert cli("eval", "run", "--checkpoint", "merged.pt").code == 0
