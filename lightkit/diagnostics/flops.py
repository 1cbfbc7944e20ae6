"""Floating-point operations of a model, counted without computing them.

A copy of the model runs on meta tensors, which have a shape and no values. That takes no memory and little time, and
PyTorch takes none of its fast paths, which hide operators from the counter. One multiplication and one addition are two
operations (FLOPs), or one MAC.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from lightkit.common.errors import UserError
from lightkit.common.modules import layer_by_layer
from lightkit.device.recompute import recompute
from lightkit.diagnostics.footprint import on_copy

RULE = "count_flops"
"""Method of a module that counts its own operations: `count_flops(inputs, output) -> int`."""
ModuleRule = Callable[[Any, Any, Any], int]
"""Counts the operations of a module of another package: `rule(module, inputs, output)`, in a forward pass."""
_BACKWARD = 2
"""Times the operations of a forward pass that a backward pass takes, of a module that counts its own."""
_MOVES = re.compile(
    r"empty|zeros|ones|full|arange|linspace|eye|scalar_tensor|new_|view|clone|copy|detach|alias|reshape|expand|repeat|lift"
    r"|cat$|stack$|split|chunk|unbind|slice|select|index|gather|scatter|embedding$|transpose|permute|squeeze|fill|zero_?$"
    r"|set_|resize|roll|flip|unfold|as_strided|(bernoulli|uniform|normal|random|exponential)_?$|^rand|_local_scalar|item"
    r"|is_|sym_|size|stride|device|nonzero|tril|triu|pad|check_errors"
)
"""Operators that move, make or look at values, and compute none."""
_MINOR = re.compile(
    r"norm|softmax|pool|mean|sum$|sum_|max|min|var|std|prod|any|all|logcumsumexp|logsumexp|cum|dropout|sort|topk|where"
    r"|upsample|interpolate|cell|rsub|masked|loss|bucketize|one_hot|histc|swish|[er]elu|tanh|sigmoid|mish|glu|hard|shrink"
)
"""Operators that compute a few numbers for each value, besides those that PyTorch itself calls pointwise."""


class Uncounted(NamedTuple):
    """An operator that no rule counts."""

    name: str
    """As PyTorch calls it: `relu`."""
    calls: int
    """How often it ran."""
    values: int
    """Numbers that it gave in all."""
    minor: bool
    """Whether it computes a few operations for each of them, as an addition or a norm does; not so an unknown one."""


@dataclass(frozen=True)
class Flops:
    """Operations of one pass."""

    total: int
    """All together."""
    modules: Mapping[str, int] = field(default_factory=dict)
    """By the path of a module, with those below it; `` is the model."""
    operators: Mapping[str, int] = field(default_factory=dict)
    """By the operator that computes them."""
    uncounted: tuple[Uncounted, ...] = ()
    """Operators of the forward pass without a rule, the largest first."""
    measured: bool = False
    """Whether the model had to compute with values, as one that looks at them does."""

    @property
    def macs(self) -> int:
        """Return multiplications with an addition, as papers on networks for images count."""
        return self.total // 2

    @property
    def minor(self) -> int:
        """Estimate the operations of elementwise ones, norms and the like: one for each value."""
        return sum(op.values for op in self.uncounted if op.minor)

    @property
    def unknown(self) -> tuple[Uncounted, ...]:
        """Return the operators that may compute much, of which nothing is known."""
        return tuple(op for op in self.uncounted if not op.minor)


def count_flops(
    model: nn.Module,
    run: Callable[[nn.Module, Any], Any],
    batch: Any,
    *,
    backward: bool = False,
    recomputed: Sequence[str] = (),
    sample: Any = None,
    rules: Mapping[str, ModuleRule] = MappingProxyType({}),
    values: bool = True,
) -> Flops:
    """Count the operations of a forward pass, or of one in training with the backward pass.

    Matrix products, convolutions and attention count by PyTorch's rules (`torch.utils.flop_counter`) and some of our
    own. A module with a method `count_flops(inputs, output)` counts itself, with all that is in it.

    Args:
        model: The network; nothing of it changes.
        run: Runs a model on the batch; returns the loss where `backward` is asked for.
        batch: What it runs on.
        backward: Run in training mode, and the backward pass too. What is frozen needs less of it.
        recomputed: Patterns of modules that compute their activations again in the backward pass.
        sample: What to run on where values are needed, None for the batch itself.
        rules: Count modules by the name of their class, or of one that it derives from: `DeformConv2d`, or in full
            `torchvision.ops.DeformConv2d`. They come before the method, and count all that is in such a module.
        values: Whether a model that looks at values may be run on some.

    Raises:
        Exception: Whatever the model raises with values too.
    """

    def count(copied: nn.Module, given: Any, device: str) -> Flops:
        recompute(copied, recomputed)
        measured = device == "cpu"
        with _no_fast_path() if measured else nullcontext():
            return _counted(copied, run, given, rules, backward=backward, measured=measured)

    return on_copy(model, batch, count, sample, values=values)


def _counted(
    model: nn.Module,
    run: Callable[[nn.Module, Any], Any],
    batch: Any,
    rules: Mapping[str, ModuleRule],
    *,
    backward: bool,
    measured: bool = False,
) -> Flops:
    own, recorder = _OwnRules(), _Recorder()
    root = type(model).__name__
    for name, module in model.named_modules():
        if (rule := _rule_of(module, rules)) is not None:
            module.register_forward_pre_hook(recorder.enter)
            module.register_forward_hook(partial(own.leave, name, recorder, rule), with_kwargs=True)
    model.train(backward)
    counter = FlopCounterMode(display=False, custom_mapping=dict(RULES))
    with recorder, torch.set_grad_enabled(backward), counter:
        result = run(model, batch)
        if backward:
            recorder.inside += 1
            result.backward()
    counts = {_path(name, root): Counter(found) for name, found in counter.get_flop_counts().items()}
    own.put_into(counts, _BACKWARD if backward else 0)
    operators = counts.pop(None, Counter())
    return Flops(
        operators.total(),
        {str(name): found.total() for name, found in counts.items()},
        {str(op).removeprefix("aten."): count for op, count in operators.most_common() if count},
        recorder.uncounted(),
        measured,
    )


def rule_name(module: nn.Module, rules: Mapping[str, ModuleRule]) -> str | None:
    """Return which rule is for a module: that of its class, or of the next one that it derives from; None for none."""
    names = (name for kind in type(module).__mro__ for name in (f"{kind.__module__}.{kind.__name__}", kind.__name__))
    return next((name for name in names if name in rules), None)


def _rule_of(module: nn.Module, rules: Mapping[str, ModuleRule]) -> ModuleRule | None:
    """Return what counts a module: a rule for its class, or its own method."""
    name, own = rule_name(module, rules), getattr(module, RULE, None)
    if name is not None:
        return partial(_told, name, rules[name])
    return (lambda _module, inputs, output: int(own(inputs, output))) if callable(own) else None


def _told(name: str, rule: ModuleRule, module: nn.Module, inputs: Any, output: Any) -> int:
    try:
        return int(rule(module, inputs, output))
    except Exception as error:
        what = f"this rule fails: {type(error).__name__}: {error}"
        fix = "a function that returns a whole number: rule(module, inputs, output)"
        raise UserError(what, key=f"logger.flops.{name}", fix=fix, family="model-misfit") from error


def _path(name: str, root: str) -> str | None:
    """Return the path of a module by the counter's name for it: None for all of them together."""
    if name == "Global":
        return None
    return "" if name == root else name.removeprefix(f"{root}.")


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Let attention and recurrent layers compute by operators that are counted."""
    with layer_by_layer(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of switches that go with this one, and that we leave alone
        with torch.backends.mkldnn.flags(enabled=False):
            yield


class _Recorder(TorchDispatchMode):
    """Sees the operators that are run, and keeps book of those that compute and have no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        """Modules we are in that count themselves; nothing is noted there."""
        self._found: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator."""
        output = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", None)
        if self.inside or packet in flop_registry or packet in RULES:
            return output
        name = str(packet or func).removeprefix("aten.").removeprefix("prim.").removeprefix("prims.")
        if getattr(func, "is_view", False) or _MOVES.search(name):
            return output
        minor = torch.Tag.pointwise in getattr(func, "tags", ()) or _MINOR.search(name) is not None
        name = re.sub(r"^_?(native_|safe_)*|_no_training|_legit|_with_indices|_$", "", name)
        entry = self._found.setdefault(name, [0, 0, 1])
        first = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)), None)
        entry[0] += 1
        entry[1] += 0 if first is None else first.numel()
        entry[2] &= minor
        return output

    def enter(self, _module: nn.Module, _inputs: Any) -> None:
        """Take note that a module runs which counts itself."""
        self.inside += 1

    def uncounted(self) -> tuple[Uncounted, ...]:
        """Return what was noted, unknown operators first, then the largest."""
        found = [Uncounted(name, calls, values, bool(minor)) for name, (calls, values, minor) in self._found.items()]
        return tuple(sorted(found, key=lambda op: (op.minor, -op.values)))


class _OwnRules:
    """What modules say that they compute."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._kinds: dict[str, str] = {}

    def leave(
        self, name: str, recorder: _Recorder, rule: ModuleRule, module: Any, inputs: Any, kwargs: Any, output: Any
    ) -> None:
        """Ask a module that counts itself, unless one around it does so too."""
        recorder.inside -= 1
        if not recorder.inside:
            told = rule(module, (*inputs, *kwargs.values()), output)
            self._told[name] = self._told.get(name, 0) + told
            self._kinds[name] = f"{type(module).__name__}.{RULE}"

    def put_into(self, counts: dict[str | None, Counter[Any]], backward: int) -> None:
        """Put what was told in the place of what was counted below these modules."""
        for name, told in self._told.items():
            counted = Counter(counts.get(name, Counter()))
            above = [name[:at] for at, sign in enumerate(name) if sign == "."]
            for place in dict.fromkeys([None, "", *above, name]):
                counts.setdefault(place, Counter()).subtract(counted)
                counts[place][self._kinds[name]] += told * (1 + backward)


def _fft(complexity: float) -> Callable[..., int]:
    def rule(shape: Sequence[int], dims: Sequence[int], *_args: Any, **_options: Any) -> int:
        length = math.prod(shape[dim] for dim in dims)
        return int(complexity * math.prod(shape) * math.log2(max(2, length)))

    return rule


def _vector(matrix: Sequence[int], *_args: Any, **_options: Any) -> int:
    return 2 * math.prod(matrix)


def _attention_backward(output: Sequence[int], *inputs: Any, **_options: Any) -> int:
    query, key, value = inputs[:3]
    return int(sdpa_backward_flop_count(output, query, key, value))


_ATEN = torch.ops.aten
_MORE_RULES: dict[Any, Callable[..., int]] = {
    _ATEN.mv: _vector,
    _ATEN.dot: _vector,
    _ATEN.vdot: _vector,
    _ATEN.addmv: lambda _bias, matrix, *_args, **_options: _vector(matrix),
    _ATEN._scaled_dot_product_flash_attention_for_cpu: lambda *qkv, **_options: int(sdpa_flop_count(*qkv[:3])),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _ATEN._cdist_forward: lambda left, right, *_args, **_options: 3 * math.prod(left) * right[-2],
    _ATEN._trilinear: lambda left, weight, *_args, **_options: (
        2 * left[0] * (math.prod(weight) + weight[0] * weight[-1])
    ),
    _ATEN._fft_r2c: _fft(2.5),
    _ATEN._fft_c2r: _fft(5),
    _ATEN._fft_c2c: _fft(5),
}
RULES = {operator: rule for operator, rule in _MORE_RULES.items() if operator not in flop_registry}
"""Rules for operators that PyTorch's counter has none for, by shapes of their arguments."""
