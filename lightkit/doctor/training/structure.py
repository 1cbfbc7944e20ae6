"""How the model is put together: what its optimizer holds, what shares memory, what PyTorch does not know of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from lightkit.assembly import Learner
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, named, percent, sized
from lightkit.doctor.training.probing import attributes_of, compute, contents, modules_of, training_batches

_NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    *([nn.RMSNorm] if hasattr(nn, "RMSNorm") else []),
)


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Compare the optimizer with the model, and look at what modules hold."""
    learner = run.learner()
    held = dict(attributes_of(learner))
    plain = {
        name: parts
        for name, value in held.items()
        if (parts := [each for each in contents(value) if isinstance(each, Tensor)])
        and any(not each.requires_grad and each.numel() > 0 for each in parts)
    }
    hidden = [*find_unregistered(learner.model)]
    yield from hidden
    yield from _optimizer(learner)
    yield from _shared(learner)
    learner.network.train()
    used = _Used()
    batch = next(training_batches(learner, 1, run.rows(learner.data.train.batch_size)))
    with used.listening(learner):
        compute(learner, batch)
    yield from _norms(learner)  # after a forward, which may have put them into another mode
    if not hidden:
        yield from _made_in_forward(used.strangers)
    for name, value in attributes_of(learner):  # the module moves to the device itself what it assigns anew, unchanged
        if value is not held.get(name) and [*map(id, contents(value))] == [*map(id, plain.get(name, ()))]:
            plain.pop(name, None)
    yield from _no_buffers(learner, plain, used.storages)


def _optimizer(learner: Learner) -> Iterator[Finding]:
    """Compare what the optimizer holds with what trains."""
    parameters = dict(learner.model.named_parameters())
    names = {id(each): name for name, each in parameters.items()}
    held = [(each, group) for group in learner.optimizer.param_groups for each in group["params"]]
    ids = {id(each) for each, _ in held}
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    outside = [name for name, each in trained.items() if id(each) not in ids]
    strange = sum(id(each) not in names for each, _ in held)
    still = [
        names[id(each)]
        for each, group in held
        if max(float(group["lr"]), float(group.get("initial_lr", 0))) == 0 and names.get(id(each)) in trained
    ]
    numbers = {"held": len(held), "outside": outside, "strange": strange}
    if outside:
        share = sum(trained[name].numel() for name in outside) / sum(each.numel() for each in trained.values())
        measured = (
            f"the optimizer holds {len(trained) - len(outside)} of the {sized(len(trained), 'tensor')} that train: "
            f"{named(outside, 6)} ({percent(share)} of the weights) are not in it"
        )
        why = "these stay as they were drawn, whatever their gradients say"
        fix = "hand all of `params` on to the optimizer; what is to stay as it is gets requires_grad_(False)"
        yield Finding("optimizer", "error", measured, why, "optim", fix, numbers)
    if strange:
        measured = (
            f"{sized(strange, 'tensor')} of the {len(held)} that the optimizer holds belong to no layer of the model"
        )
        why = (
            "they were replaced after the optimizer was made: it steps over the old ones, and the new ones do not learn"
        )
        fix = "replace layers in __init__, not in forward; no nn.Parameter(...) assigned later"
        yield Finding("optimizer", "error", measured, why, "model", fix, numbers)
    if still:
        measured = f"{named(still)} have a learning rate of 0"
        yield Finding("optimizer", "note", measured, "they do not learn", "optim.rules", numbers=numbers)
    if not outside and not strange and not still:
        measured = f"the optimizer holds each of the {sized(len(trained), 'tensor')} that train"
        yield Finding("optimizer", "ok", measured, numbers=numbers)


def _span(tensor: Tensor) -> tuple[int, int, int]:
    """Return the memory of a tensor: its storage, its first byte and the one behind its last."""
    size = tensor.element_size()
    last = sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    first = tensor.storage_offset() * size
    return tensor.untyped_storage().data_ptr(), int(first), int(first + last * size)


def _shared(learner: Learner) -> Iterator[Finding]:
    """Find parameters and buffers that lie on one memory without being one."""
    tensors = {**dict(learner.model.named_parameters()), **dict(learner.model.named_buffers())}
    plain = {name: each for name, each in tensors.items() if each.layout == torch.strided and each.numel()}
    plain = {name: each for name, each in plain.items() if type(each.data) is Tensor and each.device.type != "meta"}
    spans = sorted((_span(each), name) for name, each in plain.items())
    pairs = [(a, b) for (one, a), (two, b) in pairwise(spans) if one[0] == two[0] and two[1] < one[2]]
    pairs = [(a, b) for a, b in pairs if plain[a].requires_grad or plain[b].requires_grad]
    if not pairs:
        return
    one, two = sorted(pairs[0])
    measured = (
        f"{named([f'`{min(pair)}` and `{max(pair)}`' for pair in pairs])} lie on one memory, and are not one tensor"
    )
    both = plain[one].requires_grad and plain[two].requires_grad
    why = "each step changes both; on a GPU, and in a loaded checkpoint, they part and become two"
    if both:
        why = "the optimizer steps over the same numbers twice; on a GPU, and in a loaded checkpoint, they become two"
    name, fix = "shared memory of weights", f"self.{two} = self.{one} to tie them; .clone() to have two"
    yield Finding(name, "error" if both else "warning", measured, why, "model", fix, {"pairs": pairs})


_FIXES = {
    "is in evaluation mode while others train, with the mean 0 and variance 1 that it began with": (
        "{place}.train() with the rest: no {place}.eval() in forward or train()"
    ),
    "has momentum=0, so its running mean and variance stay 0 and 1": "nn.{kind}(..., momentum=0.1)",
    "is frozen with the weight 1 and bias 0 that it began with": "{place}.requires_grad_(True), or loaded numbers",
}
"""Why a norm layer stays as it began, and what to do about it."""


def _norms(learner: Learner) -> Iterator[Finding]:
    """Find norm layers that stay as they began while others train; those with pretrained numbers are meant to."""
    resting = dict[str, str]()
    for name, module in learner.model.named_modules():
        if isinstance(module, _NORMS) and (reason := _resting(module)):
            around = learner.model.get_submodule(name.rpartition(".")[0])
            own = {id(each) for each in module.parameters()}
            # Of a frozen body it is frozen with the rest.
            if any(each.requires_grad and id(each) not in own for each in around.parameters()):
                resting[name] = reason
    if not resting:
        return
    name, reason = next(iter(resting.items()))
    kind = type(learner.model.get_submodule(name)).__name__
    place = "self" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))
    others = f"; so do {sized(len(resting) - 1, 'other')}" if len(resting) > 1 else ""
    why = "a norm that never trains holds back what others learn: its statistics are not those of the data"
    fix = _FIXES[reason].format(place=place, kind=kind)
    yield Finding(
        "norm layers", "warning", f"`{name}` ({kind}) {reason}{others}", why, "model", fix, {"norms": resting}
    )


def _resting(module: nn.Module) -> str:
    """Say why a norm layer stays as it began; empty where it does not."""
    evaluates, has_no_momentum, is_frozen = _FIXES
    running, weight, bias = (getattr(module, each, None) for each in ("running_mean", "weight", "bias"))
    fresh = running is not None and not bool(running.any())
    fresh = fresh and bool(torch.as_tensor(module.running_var == 1).all())
    if fresh and not module.training:
        return evaluates
    if fresh and getattr(module, "momentum", None) == 0:
        return has_no_momentum
    if weight is None or weight.requires_grad or not bool((weight == 1).all()):
        return ""
    return is_frozen if (bias is None or not bool(bias.any())) and (running is None or fresh) else ""


class _Used(TorchDispatchMode):
    """Notes, while inside, the memory that operations read, and modules that are called and belong to nothing."""

    _should_skip_dynamo = classmethod(lambda _: False)  # that would import the compiler

    def __init__(self) -> None:
        super().__init__()
        self.storages = set[int]()
        self.strangers = dict[str, nn.Module]()

    def listening(self, learner: Learner) -> ExitStack:
        known = {id(module) for _, module in modules_of(learner)} | {id(each) for each in learner.network.modules()}

        def called(module: nn.Module, _inputs: Any) -> None:
            trains = torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters())
            if id(module) not in known and trains:
                self.strangers.setdefault(type(module).__name__, module)

        stack = ExitStack()
        stack.callback(register_module_forward_pre_hook(called).remove)
        stack.enter_context(self)
        return stack

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in [part for value in (args, [*(kwargs or {}).values()]) for part in contents(value)]:
            if isinstance(each, Tensor) and each.layout == torch.strided:
                self.storages.add(each.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))


def _made_in_forward(strangers: dict[str, nn.Module]) -> Iterator[Finding]:
    """Say which layers forward calls that are no part of the model."""
    if strangers:
        measured = f"forward calls {named([f'a {name}' for name in strangers])} that the model does not have"
        why = "a layer made in forward begins anew at each step: its weights are in no optimizer and in no checkpoint"
        fix = f"self.layer = {next(iter(strangers))}(...) in __init__, and self.layer(x) in forward"
        yield Finding("unregistered layers", "error", measured, why, "model", fix, {"layers": [*strangers]})


def _no_buffers(learner: Learner, plain: dict[str, list[Tensor]], storages: set[int]) -> Iterator[Finding]:
    """Find tensors that the model computes with, and that are neither parameters nor buffers."""
    known = {each.untyped_storage().data_ptr() for each in (*learner.model.parameters(), *learner.model.buffers())}
    names = [
        name
        for name, parts in plain.items()
        if not name.startswith("trainer.task.")
        and any(
            each.layout == torch.strided and each.untyped_storage().data_ptr() in storages - known for each in parts
        )
    ]
    if names:
        attribute = names[0].rpartition(".")[2]
        measured = f"the model computes with {named([f'`{name}`' for name in names])}: "
        measured += "a plain tensor, no buffer or parameter"
        why = "it does not move to a GPU with the model, and no checkpoint has it"
        fix = f'self.register_buffer("{attribute}", {attribute}) in place of self.{attribute} = {attribute}'
        yield Finding("tensors without a buffer", "warning", measured, why, "model", fix, {"attributes": names})


def find_unregistered(model: nn.Module) -> Iterator[Finding]:
    """Find layers and weights that PyTorch does not know of, as those in a plain list.

    Args:
        model: The model.
    """
    known = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            hidden = [each for each in contents(value) if id(each) not in known and _wants_training(each)]
            if hidden:
                full = f"{place}.{name}" if place else name
                kinds = ", ".join(dict.fromkeys(type(each).__name__ for each in hidden))
                measured = f"`{full}` holds {kinds}, and the model does not know of it"
                why = "the optimizer gets no such weights, checkpoints do not have them, no GPU is told of them"
                fix = (
                    f"self.{name} = nn.ModuleList([...]) or nn.ModuleDict in place of a list or dict; nn.Parameter "
                    "for a tensor"
                )
                numbers = {"attribute": full, "count": len(hidden)}
                yield Finding("unregistered layers", "error", measured, why, "model", fix, numbers)


def _wants_training(value: Any) -> bool:
    """Tell whether something has weights that are to train; a frozen teacher is kept out of a model on purpose."""
    if isinstance(value, nn.Module):
        return any(each.requires_grad for each in value.parameters())
    return isinstance(value, Tensor) and value.requires_grad and value.is_leaf
