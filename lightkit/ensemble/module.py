"""Networks that count as one: the ensemble as a module.

Shapes: B samples, C classes, labels, targets or outputs, M networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.modules import layer_by_layer
from lightkit.ensemble.combining import as_logits
from lightkit.ensemble.vmapped import StackedModel
from lightkit.trainer.tasks import logits

Rule = Literal["soft", "hard", "sum"]


class Joint(nn.Module):
    """Several networks that are trained as one.

    Args:
        estimators: The networks.
        stacked: In training, return the outputs of all `(B, M, C)` in place of their combination.
        scale: Factor of each network in the sum; 1 / M makes it the mean.
    """

    def __init__(self, estimators: Sequence[nn.Module], *, stacked: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.estimators = nn.ModuleList(estimators)
        self.stacked, self.scale = stacked, scale

    def forward(self, *x: Tensor) -> Tensor:
        """Compute `(B, C)`, in training of a stacked one `(B, M, C)`, from inputs `(B, ...)`."""
        outputs = torch.stack([logits(network(*x)) for network in self.estimators], dim=1)
        return outputs if self.stacked and self.training else self.scale * outputs.sum(1)


class Ensemble(nn.Module):
    """The members of an ensemble, with one output for all of them.

    The output is what a single network gives: of classes the logarithm of the combined probabilities, of labels and two
    classes their logit, of numbers the weighted mean. Losses and metrics take it as they take a network's.

    Args:
        estimators: The networks.
        task: Kind of target: `multiclass`, `binary`, `multilabel` or `regression`.
        rule: `soft`: weighted mean of probabilities; `hard`: share of the votes; `sum`: weighted sum of the outputs.
        weights: One for each network; None is the mean.
        names: Names of the members.
    """

    def __init__(
        self,
        estimators: Sequence[nn.Module],
        *,
        task: str,
        rule: Rule = "soft",
        weights: Sequence[float] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.estimators = nn.ModuleList(estimators)
        self.task, self.rule = task, rule
        self.names = tuple(names) or tuple(f"{i:02}" for i in range(len(self.estimators)))
        shares = torch.tensor(weights or [1 / len(self.estimators)] * len(self.estimators), dtype=torch.float64)
        self.weights = nn.Buffer(shares)
        self._stacked: Stacked | None = None
        self._stackable = True
        self._observer: Callable[[Tensor], None] | None = None

    def __len__(self) -> int:
        return len(self.estimators)

    def __getitem__(self, index: int) -> nn.Module:
        return self.estimators[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.estimators)

    def outputs(self, *x: Tensor) -> Tensor:
        """Return the output of every network, `(M, B, C)`.

        Alike networks are computed at once in eval mode without gradients, where that pays. The first batch is computed
        in both ways: networks whose outputs differ then stay one after the other.
        """
        if self.training or torch.is_grad_enabled() or torch.compiler.is_exporting() or not self._stackable:
            return alone(list(self.estimators), *x)
        checked = self._stacked is not None and self._stacked.current
        if not checked:
            self._stacked = stack(list(self.estimators))
        if self._stacked is None:
            self._stackable = False
            return alone(list(self.estimators), *x)
        if checked:
            return self._stacked.outputs(*x)
        expected = alone(list(self.estimators), *x)
        limit = _HALF if expected.dtype in (torch.float16, torch.bfloat16) else _FLOAT
        same: dict[str, Any] = {"rtol": limit, "atol": limit, "equal_nan": True}
        try:
            self._stackable = torch.allclose(self._stacked.outputs(*x), expected, **same)
        except (RuntimeError, NotImplementedError, ValueError, TypeError):  # it branches on values, or draws numbers
            self._stackable = False
        self._stacked = self._stacked if self._stackable else None
        return expected

    def probabilities(self, *x: Tensor) -> Tensor:
        """Return what every network predicts, `(M, B, C)`: probabilities, or numbers in regression."""
        outputs = self.outputs(*x)
        outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
        if self.task == "regression":
            return outputs
        return outputs.softmax(-1) if self.task == "multiclass" else outputs.sigmoid()

    @contextmanager
    def observed(self, observer: Callable[[Tensor], None]) -> Iterator[None]:
        """Hand over what every network predicts, `(M, B, C)`, of each batch inside.

        Args:
            observer: Gets it. Nothing is handed over where the outputs are a sum: its parts predict nothing themselves.
        """
        self._observer = observer
        try:
            yield
        finally:
            self._observer = None

    def forward(self, *x: Tensor) -> Tensor:
        """Combine the outputs of all networks, `(B, C)`."""
        if self.rule == "sum":
            return self._weighed(self.outputs(*x))
        found = self.probabilities(*x)
        if self._observer is not None:
            self._observer(found)
        if self.rule == "hard" and self.task != "regression":
            chosen = F.one_hot(found.argmax(-1), found.shape[-1]) if self.task == "multiclass" else found > 0.5
            # In double precision, as equal shares stay equal then whoever voted; so `combining.hard` adds them, too.
            return as_logits(self._weighed(chosen.double()).to(found.dtype), self.task)
        return as_logits(self._weighed(found), self.task)

    def _weighed(self, found: Tensor) -> Tensor:
        return torch.einsum("m,mbc->bc", self.weights.to(found.dtype), found)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Ensemble:
        """Move or cast the networks; the weights of the members keep their precision."""
        weights = self.weights.detach()
        super()._apply(fn, recurse)
        if self.weights.dtype != weights.dtype:
            self.weights = nn.Buffer(weights.to(self.weights.device))
        self._stacked, self._stackable = None, True
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be made anew."""
        return {**super().__getstate__(), "_stacked": None, "_observer": None}


_ON_CPU, _ON_GPU = (10, 1 << 12), (2, 1 << 24)
"""From how many networks on it pays, of how many parameters at most. What is saved is the time that each operation
takes beside its computing; the weights are in memory twice."""
_OF_MODULES = frozenset(vars(nn.Module()))
_FLOAT, _HALF = 1e-5, 0.05
"""How far the outputs may be from those of each network alone, in single and half precision."""


def alone(networks: Sequence[nn.Module], *x: Any) -> Tensor:
    """Compute the outputs `(M, B, C)` of one network after the other."""
    return torch.stack([_table(logits(network(*x))) for network in networks])


class Stacked:
    """Alike networks that are computed at once, as long as their weights stay as they are.

    Args:
        networks: The networks, in eval mode.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._model = StackedModel(networks)
        self._sources = [(t, t._version) for network in networks for t in _tensors(network).values()]

    @property
    def current(self) -> bool:
        """Tell whether the networks have the weights that were stacked."""
        return all(tensor._version == version for tensor, version in self._sources)

    def outputs(self, *x: Any) -> Tensor:
        """Compute the outputs `(M, B, C)`.

        Raises:
            RuntimeError: The networks do something that cannot be done for all of them at once.
        """

        def one(tensors: dict[str, Tensor]) -> Tensor:
            return _table(logits(torch.func.functional_call(self._model.template, tensors, x)))

        with layer_by_layer():
            outputs: Tensor = torch.func.vmap(one)(self._model.tensors)
        return outputs


def stack(networks: Sequence[nn.Module]) -> Stacked | None:
    """Stack the weights of networks; None where they are not alike, or one after the other is faster.

    Args:
        networks: The networks, in eval mode.
    """
    first = networks[0]
    tensors = [tensor for network in networks for tensor in _tensors(network).values()]
    if not tensors or any(map(torch.is_inference, tensors)):
        return None
    fewest, largest = _ON_CPU if tensors[0].device.type == "cpu" else _ON_GPU
    size = sum(parameter.numel() for parameter in first.parameters())
    pays = len(networks) >= fewest and size <= largest
    return Stacked(networks) if pays and all(alike(first, other) for other in networks[1:]) else None


def alike(one: nn.Module, other: nn.Module) -> bool:
    """Tell whether two networks differ in nothing but the values of their parameters and buffers."""
    parts, others = dict(one.named_modules()), dict(other.named_modules())
    if parts.keys() != others.keys():
        return False
    pairs = [(part, others[name]) for name, part in parts.items()]
    if not all(type(a) is type(b) and _settings(a) == _settings(b) for a, b in pairs):
        return False
    shapes = [{name: (t.shape, t.dtype, t.device) for name, t in _tensors(network).items()} for network in (one, other)]
    return shapes[0] == shapes[1]


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return what a module has beside tensors and parts, with what can only be compared as an object as that."""
    plain = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)

    def comparable(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value), [comparable(entry) for entry in value]
        if isinstance(value, dict):
            return {key: comparable(entry) for key, entry in value.items()}
        return value if isinstance(value, plain) else id(value)

    own = {name: comparable(value) for name, value in vars(module).items() if name not in _OF_MODULES}
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return {**own, "": [id(hook) for hook in hooks]}


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _table(output: Tensor) -> Tensor:
    return output[:, None] if output.ndim == 1 else output
