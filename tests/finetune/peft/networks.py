"""Networks and layers to put things into, and what is put into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.lowrank import LowRank
from lightkit.models import TransformerClassifier, TransformerLM

Make = Callable[[], nn.Module]
Inject = Callable[[nn.Module], list[str]]
Inputs = Callable[[], tuple[Tensor, ...]]
IMPLS = ("parametrize", "wrap")


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

    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    model = VisionTransformer(**sizes, num_classes=3)
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


def out(model: nn.Module, *inputs: Tensor, **named: Any) -> Tensor:
    with torch.no_grad():
        return model(*inputs, **named)


def stir(model: nn.Module, names: list[str], std: float = 0.5, seed: int = 7) -> list[str]:
    """Give the new parameters values that change what the network computes."""
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in names:
            parameters[name].copy_(torch.randn(parameters[name].shape, generator=generator) * std)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:  # its row never learns
                for low in (part for part in module.modules() if isinstance(part, LowRank)):
                    low.lora_B[module.padding_idx] = 0
    return names


# Layers for LoRA


class Around(nn.Module):
    """A layer inside of a network, so that its name has a prefix."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        output = self.layer(*inputs)
        return output[0] if isinstance(output, tuple) else output


def attention(**options: Any) -> Make:
    return lambda: nn.MultiheadAttention(8, 2, batch_first=True, **options)


def numbers(*shapes: tuple[int, ...]) -> Inputs:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def three_times() -> tuple[Tensor, ...]:
    return (torch.randn(4, 5, 8),) * 3


def tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, 11, (4, 5)),)


LAYERS: dict[str, tuple[Make, Inputs]] = {
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


def layer(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    build, inputs = LAYERS[name]
    return Around(build()), inputs()


def with_lora(model: nn.Module, impl: str, *, rank: int = 2, learnt: bool = True, **options: Any) -> list[str]:
    """LoRA on the layer, as if it had learnt something."""
    names = inject_lora(model, {"layer": rank}, alpha=3.0, impl=impl, **options)  # type: ignore[arg-type]
    return stir(model, names, std=0.4) if learnt else names
