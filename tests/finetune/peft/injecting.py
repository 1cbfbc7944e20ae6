"""Networks to put things into, and what must hold whatever is put in."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.finetune.peft.adapter import Adapter, inject_adapters
from lightkit.finetune.peft.injected import injected_modules
from lightkit.finetune.peft.merging import plain_names
from lightkit.models import TransformerClassifier, TransformerLM
from lightkit.trainer.average import Ema

Make = Callable[[], nn.Module]
Inject = Callable[[nn.Module], list[str]]


class Translator(nn.Module):
    """Encoder and decoder layers with all kinds of masks."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": batch_first}
        self.reader = nn.TransformerEncoderLayer(16, 2, 32, **options)
        self.writer = nn.TransformerDecoderLayer(16, 2, 32, norm_first=True, **options)
        self.batch_first = batch_first
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(5) >= torch.tensor([[5], [3], [2], [4]])
        causal = nn.Transformer.generate_square_subsequent_mask(5)
        x = x if self.batch_first else x.transpose(0, 1)
        memory = self.reader(x, src_key_padding_mask=padding)
        y = self.writer(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding)
        return y if self.batch_first else y.transpose(0, 1)


def classifier(**options: Any) -> nn.Module:
    return TransformerClassifier((6, 5), 3, dim=16, depth=2, heads=2, **options)


def language_model(**options: Any) -> nn.Module:
    return TransformerLM(11, 8, dim=16, depth=2, heads=2, **options)


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=3
    )
    nn.init.normal_(model.heads.head.weight)
    return model


def torchvision_swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([2, 2], 16, [2, 2], [2, 2], [4, 4], num_classes=3, stochastic_depth_prob=0.0)


def timm_vit(**options: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3, **options)


def resnet18() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=3)


def encoder(*, batch_first: bool = True, norm_first: bool = False, depth: int = 2) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=batch_first and not norm_first)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def images(size: int = 16) -> Tensor:
    return torch.randn(3, 3, size, size)


def made(make: Make, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make().eval()


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def stir(model: nn.Module, names: list[str], std: float = 0.5, seed: int = 7) -> None:
    """Give the new parameters values that change what the network computes."""
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in names:
            parameters[name].copy_(torch.randn(parameters[name].shape, generator=generator) * std)


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def out(model: nn.Module, *inputs: Tensor, **named: Any) -> Tensor:
    with torch.no_grad():
        return model(*inputs, **named)


@contextmanager
def without_fast_path() -> Iterator[None]:
    """PyTorch's kernels for encoder layers in eval mode round otherwise, and step aside where there are hooks."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def check_start(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """The network computes what it did before, none of its own tensors changed, and the names told are the new ones."""
    model = made(make)
    fast, state = out(model, *x), bits(model)
    with without_fast_path():
        before = model(*x)  # with gradients: without them a linear layer may round otherwise
        new = inject(model)
        assert torch.equal(model(*x), before)
    torch.testing.assert_close(out(model, *x), fast, atol=1e-5, rtol=1e-5)
    after, plain = bits(model), plain_names(model)
    assert [name for name, _ in model.named_parameters() if name not in plain] == new
    assert new
    assert sorted(plain.values()) == sorted(state)
    assert all(torch.equal(after[name], state[before]) for name, before in plain.items())
    assert {name for path, _ in injected_modules(model) for name in new if name.startswith(f"{path}.")} == set(new)


def check_modes(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """What was put in counts, and equally so in train and in eval mode, with and without gradients."""
    model = frozen(made(make))
    before = out(model, *x)
    stir(model, inject(model))
    changed = out(model, *x)
    assert not torch.allclose(changed, before, atol=1e-3)
    torch.testing.assert_close(model(*x), changed, atol=1e-5, rtol=1e-5)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    torch.testing.assert_close(out(model, *x), changed, atol=1e-5, rtol=1e-5)


def check_learning(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """Every new parameter has got a gradient after two steps, and moved; nothing else did."""
    model = frozen(made(make))
    state = bits(model)
    names = inject(model)
    start = bits(model)
    reached: set[str] = set()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.Adam([parameters[name] for name in names], lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        (model(*x) ** 2).sum().backward()
        reached |= {name for name in names if parameters[name].grad is not None and parameters[name].grad.any()}
        optimizer.step()
    assert reached == set(names)
    assert not [name for name in names if torch.equal(start[name], parameters[name])]
    after = model.state_dict()
    assert all(torch.equal(after[name], state[before]) for name, before in plain_names(model).items())


def check_copies(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """State dicts, pickles, copies and replicas compute the same bits and are independent."""
    model = made(make)
    names = inject(model)
    stir(model, names)
    expected = out(model, *x)
    fresh = made(make)
    inject(fresh)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(out(fresh, *x), expected)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    pickled = torch.load(file, weights_only=False)
    assert torch.equal(out(pickled, *x), expected)
    assert torch.equal(out(copy.deepcopy(pickled), *x), expected)
    assert [*pickled.state_dict()] == [*model.state_dict()]
    twin = copy.deepcopy(model)
    assert torch.equal(out(twin, *x), expected)
    stir(twin, names, seed=8)
    assert not torch.equal(out(twin, *x), expected)
    assert torch.equal(out(model, *x), expected)


def check_replica(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """A replica, as `nn.DataParallel` makes it, works with its own tensors."""
    model = made(make)
    names = inject(model)
    stir(model, names)
    other = copy.deepcopy(model)
    stir(other, names, seed=8)
    replica = _replica(model, other)
    torch.testing.assert_close(out(replica, *x), out(other, *x), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(out(replica, *x), out(model, *x), atol=1e-3)


def _replica(model: nn.Module, source: nn.Module) -> nn.Module:
    """`model` replicated as by `torch.nn.parallel.replicate`, with the tensors of `source`."""
    copies = {id(module): module._replicate_for_data_parallel() for module in model.modules()}
    for module in model.modules():
        for name, child in module._modules.items():
            setattr(copies[id(module)], name, None if child is None else copies[id(child)])
    for path, module in model.named_modules():
        for name, tensor in source.get_submodule(path)._parameters.items():
            setattr(copies[id(module)], name, None if tensor is None else tensor.detach())
    return copies[id(model)]


def check_average(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """The average of the weights lies between how it began and how it is, and goes away again."""
    model = frozen(made(make))
    names = inject(model)
    start, average = out(model, *x), Ema(model, decay=0.5)
    stir(model, names)
    average.update()
    newest = out(model, *x)
    with average.applied():
        between = out(model, *x)
    assert not torch.equal(between, start)
    assert not torch.equal(between, newest)
    assert torch.equal(out(model, *x), newest)


def check_compiled(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """torch.compile takes the network in one graph."""
    torch._dynamo.reset()
    model = made(make)
    stir(model, inject(model))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(out(compiled, *x), out(model, *x), atol=1e-5, rtol=1e-5)
    gradients = []
    for network in (compiled, model):
        model.zero_grad()
        network(*x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-3)


def check_autocast(make: Make, inject: Inject, x: tuple[Tensor, ...]) -> None:
    """Near the full-precision output, and of the type that the plain network has off PyTorch's fast path."""
    model = made(make)
    with without_fast_path(), torch.autocast("cpu", dtype=torch.bfloat16):
        kind = out(model, *x).dtype
    stir(model, inject(model), std=0.1)
    expected = out(model, *x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = out(model, *x)
        (model(*x) ** 2).sum().backward()
    assert found.dtype == kind
    torch.testing.assert_close(found.float(), expected.float(), atol=0.15, rtol=0.1)


def around(layer: nn.Module) -> nn.Module:
    return nn.ModuleDict({"layer": layer})


def adapted(layer: nn.Module, **options: Any) -> nn.Module:
    """A layer with an adapter that does something."""
    options = {"reduction": 2, **options}
    stir(layer, [n.removeprefix("layer.") for n in inject_adapters(around(layer), ["layer"], **options)])
    return layer


def bottleneck(adapter: Adapter, x: Tensor) -> Tensor:
    low = F.gelu(F.linear(x, adapter.down_weight, adapter.down_bias))
    return F.linear(low, adapter.up_weight, adapter.up_bias)
