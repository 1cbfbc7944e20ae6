"""Where LoRA can go: the weights of the layers asked for, those they are tied to, and why some cannot be adapted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.modules import TransposedLinear
from lightkit.finetune.peft.lowrank import LowRank, matrix_shape
from lightkit.finetune.peft.normed import makings, parametrizations, weight_of

Impl = Literal["parametrize", "wrap"]
IMPLS: tuple[Impl, ...] = ("parametrize", "wrap")
SUPPORTED: tuple[type[nn.Module], ...] = (
    nn.Linear,
    TransposedLinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.Embedding,
    nn.MultiheadAttention,
)
"""Layers that can be adapted."""
_NEVER_CALLED = (nn.MultiheadAttention, NonDynamicallyQuantizableLinear)
"""Attentions and their output projections: paths beside these would not be taken."""


@dataclass(frozen=True)
class Site:
    """One weight that is to be adapted."""

    path: str
    """Of the layer that holds it."""
    host: nn.Module
    """The layer."""
    tensor: str
    """What the layer calls it."""
    parts: int
    """Matrices stacked in it."""
    rank: int
    """Of its low-rank change."""
    wrapped: bool
    """Whether the change is a path beside the layer."""

    @property
    def name(self) -> str:
        """Full name of the weight."""
        return f"{self.path}.{self.tensor}" if self.path else self.tensor

    @property
    def weight(self) -> Tensor:
        """The weight itself, or what the layer makes it of its parameters."""
        return weight_of(self.host, self.tensor)

    @property
    def identity(self) -> object:
        """Equal for the same weight in several layers."""
        own = self.host._parameters.get(self.tensor)
        return (id(self.host), self.tensor) if own is None else id(own)


def least_side(layer: nn.Module) -> int:
    """The largest rank a layer can take: the shorter side of the smallest of its matrices."""
    sides = [min(matrix_shape(weight_of(layer, name), parts)) for name, parts in _tensors(layer).items()]
    return min(sides, default=0)


def find_sites(model: nn.Module, ranks: Mapping[str, int], *, impl: Impl, key: str) -> list[Site]:
    """The weights of layers, and of all layers that share one of them.

    Args:
        model: The network.
        ranks: Path of a layer → rank.
        impl: How they are to be adapted; attentions are parametrized in any case.
        key: Where the options stand in the configuration, for errors.

    Raises:
        UserError: A layer cannot be adapted, a rank is larger than the layer, or there is no layer.
    """
    return _tied(model, _asked(model, ranks, impl, key), key)


def _asked(model: nn.Module, ranks: Mapping[str, int], impl: Impl, key: str) -> list[Site]:
    """The weights of the layers asked for; all that is wrong with them is told at once."""
    if not ranks:
        raise UserError("there is no layer for LoRA", key=f"{key}.match", expected=_supported())
    uncalled = _uncalled(model)
    found: dict[tuple[int, str], Site] = {}
    errors: list[UserError] = []
    for path, rank in ranks.items():
        host = model.get_submodule(path)
        wrapped = impl == "wrap" and id(host) not in uncalled
        for site in _of_layer(path, host, rank, wrapped=wrapped):
            if site.path == path or site.path not in ranks:
                found.setdefault((id(site.host), site.tensor), site)
        if not isinstance(host, SUPPORTED):
            errors.append(_unsupported(path, host, key))
    errors += [error for site in found.values() if (error := _wrong(site, key))]
    if errors:
        raise errors[0] if len(errors) == 1 else UserErrors(errors)
    return list(found.values())


def _uncalled(model: nn.Module) -> set[int]:
    """Output projections of attentions: their weights are read, but they are never called."""
    return {id(module.out_proj) for module in model.modules() if isinstance(module, nn.MultiheadAttention)}


def _of_layer(path: str, host: nn.Module, rank: int, *, wrapped: bool) -> list[Site]:
    if not isinstance(host, SUPPORTED):
        return []
    wrapped = wrapped and not isinstance(host, nn.MultiheadAttention)
    sites = [Site(path, host, tensor, parts, rank, wrapped) for tensor, parts in _tensors(host).items()]
    if isinstance(host, nn.MultiheadAttention):
        sites.append(Site(f"{path}.out_proj".removeprefix("."), host.out_proj, "weight", 1, rank, wrapped=False))
    return sites


def _tensors(host: nn.Module) -> dict[str, int]:
    """The weights that a layer holds itself, and how many matrices are stacked in each."""
    if not isinstance(host, nn.MultiheadAttention):
        return {"weight": 1} if isinstance(host, SUPPORTED) else {}
    if host._qkv_same_embed_dim:
        return {"in_proj_weight": 3}
    return dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"), 1)


def _wrong(site: Site, key: str) -> UserError | None:
    """Why this weight cannot be adapted so, or None."""
    if (why := _unfit(site)) is not None:
        return UserError(
            f"LoRA cannot adapt {site.name}: {why}",
            key=f"{key}.match",
            expected="a layer that knows its size and has no LoRA",
            received=type(site.host).__name__,
        )
    rows, columns = matrix_shape(site.weight, site.parts)
    if not 1 <= site.rank <= min(rows, columns):
        return UserError(
            f"the rank does not fit {site.name}, a matrix of {rows} × {columns}",
            key=f"{key}.rank",
            expected=f"1 to {min(rows, columns)}",
            received=site.rank,
            fix=f"a rank of its own: {key}.ranks",
        )
    return _impossible(site, key)


def _unfit(site: Site) -> str | None:
    """Why neither way can adapt this weight, or None."""
    if hasattr(site.host, "lora") or any(isinstance(part, LowRank) for part in _changes(site)):
        return "it has LoRA already"
    if not _changes(site) and not isinstance(getattr(site.host, site.tensor, None), Tensor):
        return "it is not a tensor"
    return "it has no size yet" if isinstance(site.weight, nn.parameter.UninitializedParameter) else None


def _changes(site: Site) -> list[nn.Module]:
    """The parametrizations of a weight."""
    return list(parametrizations(site.host, site.tensor) or ())


def _impossible(site: Site, key: str) -> UserError | None:
    """What one way cannot do and the other can."""
    host, why = site.host, None
    if not site.wrapped:
        if site.tensor not in host._parameters and not _changes(site):
            why = "a hook makes its weight anew before each pass"
        elif isinstance(host, nn.Embedding) and host.sparse:
            why = "its gradients are sparse"
    elif isinstance(host, nn.Embedding) and (host.max_norm is not None or host.scale_grad_by_freq):
        why = "it limits the norm of its rows, or divides their gradients by how often they are used"
    elif not isinstance(host, TransposedLinear) and not any(type(host).forward is kind.forward for kind in SUPPORTED):
        why = f"{type(host).__name__} computes in a way of its own"
    if why is None:
        return None
    impl, other = ("wrap", "parametrize") if site.wrapped else ("parametrize", "wrap")
    what, fix = f"{site.path} cannot be adapted by impl={impl}: {why}", f"{key}.impl={other}"
    if not site.wrapped and isinstance(host, _NEVER_CALLED):
        fix = "one of torch.nn.utils.parametrizations in the model, in place of the hook"
    return UserError(what, key=f"{key}.impl", received=impl, fix=fix)


def _unsupported(path: str, host: nn.Module, key: str) -> UserError:
    kind = type(host).__name__
    return UserError(f"LoRA cannot adapt {path}", key=f"{key}.match", expected=_supported(), received=kind)


def _supported() -> str:
    return ", ".join(kind.__name__ for kind in SUPPORTED)


def _tied(model: nn.Module, sites: list[Site], key: str) -> list[Site]:
    """The sites, and those of other layers that hold one of their weights too."""
    _check_makings(model, sites, key)
    asked = {site.identity: site for site in reversed(sites)}
    found = {(id(site.host), site.tensor): site for site in sites}
    uncalled = _uncalled(model)
    for path, module, tensor, parameter in _held(model):
        if (site := asked.get(id(parameter))) is not None:
            wrapped = site.wrapped and id(module) not in uncalled
            other = replace(site, path=path, host=module, tensor=tensor, wrapped=wrapped)
            other = found.setdefault((id(module), tensor), other)
            if error := _untied(site, other, key):
                raise error
    return list(found.values())


def _check_makings(model: nn.Module, sites: list[Site], key: str) -> None:
    """Refuse a weight that its layer makes of parameters which another one also makes its own of.

    Raises:
        UserError: There is one.
    """
    made = {id(parameter): site for site in sites for parameter in makings(site.host, site.tensor)}
    seen: dict[int, str] = {}
    for path, _, tensor, parameter in _held(model):
        name, site = f"{path}.{tensor}", made.get(id(parameter))
        if site is not None and seen.setdefault(id(parameter), name) != name:
            what = f"LoRA cannot adapt {site.name}: {seen[id(parameter)]}, of which it is made, is also {name}"
            raise UserError(what, key=f"{key}.match", fix="a layer that shares nothing, or both without LoRA")


def _held(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter | None]]:
    """Every parameter with each of the modules that hold it."""
    for path, module in model.named_modules():
        yield from ((path, module, tensor, parameter) for tensor, parameter in module._parameters.items())


def _untied(site: Site, other: Site, key: str) -> UserError | None:
    """Why two layers cannot be adapted as one, or None."""
    if _tensors(other.host).get(other.tensor) != site.parts:
        what = f"LoRA cannot adapt {site.name}: it is also {other.name}, in a {type(other.host).__name__}"
        return UserError(what, key=f"{key}.match", expected=_supported())
    if other.rank != site.rank:
        what = f"two ranks for one weight, {site.name} and {other.name}"
        return UserError(what, key=f"{key}.ranks", received=f"{site.rank} and {other.rank}")
    return _impossible(other, key)
