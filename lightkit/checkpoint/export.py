"""Writing weights for others to read: a bare state dict, safetensors, a whole model, the mean of several."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from lightkit.checkpoint.compare import format_text, listed, same_bits, shape_text
from lightkit.checkpoint.content import upgrade
from lightkit.checkpoint.files import draft, to_plain
from lightkit.checkpoint.fitting import fit
from lightkit.checkpoint.reading import LABEL, reason
from lightkit.common import run_files
from lightkit.common.errors import UserError, writing_to

FILES = {
    "weights": run_files.WEIGHTS,
    "safetensors": run_files.WEIGHTS_SAFETENSORS,
    "model": run_files.MODEL,
    "adapter": run_files.ADAPTER,
}
"""Kind of export and the file it goes to in a run's folder; `lightkit.checkpoint.delta.write_delta` writes adapters."""
PROTOCOL = 2
"""Protocol of pickle that `torch.load` reads everywhere, also where it loads nothing but weights."""


def export(
    kind: str, folder: Path, model: nn.Module, *, state: Mapping[str, Any] | None = None, protocol: int = PROTOCOL
) -> Path:
    """Write the weights a model holds, or a given state, into a run's folder, over the file of an earlier export.

    Args:
        kind: `weights`: a state dict that `torch.load` opens anywhere; `safetensors`; `model`: the model itself, which
            opens only where its code is.
        folder: The run's folder.
        model: The model, without wrappers. With `model` and a `state`, a copy of it gets the state, so it must be of
            the class that the state belongs to.
        state: Tensors by name to write instead of the model's own, such as those of a merged model.
        protocol: Protocol of pickle; safetensors know none.

    Returns:
        The file.

    Raises:
        UserError: There is no such kind, the state does not fit the model, or the file cannot be written.
    """
    if kind not in FILES or kind == "adapter":
        choices = [name for name in FILES if name != "adapter"]
        raise UserError("no such kind of export", argument="kind", received=kind, choices=choices)
    path = folder / FILES[kind]
    if kind == "model":
        if state is not None:
            model = copy.deepcopy(model)
            fit(model, state, source="the state to write")
        write_model(model, path, protocol=protocol)
        return path
    tensors = model.state_dict() if state is None else state
    if kind == "safetensors":
        write_safetensors(tensors, path)
    else:
        write_state_dict(tensors, path, protocol=protocol)
    return path


def write_state_dict(state: Mapping[str, Any], path: Path, *, protocol: int = PROTOCOL) -> None:
    """Write tensors by name so that `torch.load` with `weights_only=True` opens them, in the usual protocol of pickle.

    Raises:
        UserError: The file cannot be written; one of that name is as it was.
    """
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    plain = to_plain({**state, **{name: tensor.detach().cpu() for name, tensor in tensors.items()}})
    write_file(path, lambda file: torch.save(plain, file, pickle_protocol=protocol))


def write_safetensors(state: Mapping[str, Any], path: Path) -> None:
    """Write tensors by name as safetensors; what is not a tensor is left out, tied weights are written twice.

    Raises:
        UserError: The file cannot be written; one of that name is as it was.
    """
    from safetensors.torch import save

    tensors = {name: value.detach() for name, value in state.items() if isinstance(value, torch.Tensor)}
    as_rows: dict[str, Any] = {"memory_format": torch.contiguous_format, "copy": True}
    data = save({name: tensor.to("cpu", **as_rows) for name, tensor in tensors.items()}, metadata={"format": "pt"})
    write_file(path, lambda file: file.write(data))


def write_model(model: nn.Module, path: Path, *, protocol: int = PROTOCOL) -> None:
    """Write a model with its class: a pickle, which opens only where its code is and only when trusted.

    Raises:
        UserError: The model cannot be pickled, or the file cannot be written; one of that name is as it was.
    """
    at_host = copy.deepcopy(model).cpu()
    for module in at_host.modules():  # hooks that belong to the run mark themselves
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for number in [number for number, hook in hooks.items() if getattr(hook, "transient", False)]:
                del hooks[number]
    try:
        write_file(path, lambda file: torch.save(at_host, file, pickle_protocol=protocol))
    except (AttributeError, TypeError) as error:  # what pickle raises for functions defined in place
        what, fix = f"the model cannot be written whole: {reason(error)}", "write its weights instead"
        raise UserError(what, key=str(path), fix=fix, family="cannot-write") from error


def write_checkpoint(content: dict[str, Any], path: Path) -> None:
    """Write a whole checkpoint, as `lightkit.checkpoint.formats.open_file` gives it, in today's layout.

    Raises:
        UserError: It is not a lightkit checkpoint, or the file cannot be written; one of that name is as it was.
    """
    if LABEL not in content:
        fix = "--to weights takes the weights of any file"
        raise UserError("only a lightkit checkpoint holds the state of a run", key=str(path), fix=fix)
    plain = to_plain(upgrade(content))
    write_file(path, lambda file: torch.save(plain, file))


def write_file(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all.

    Raises:
        UserError: It cannot be written; one of that name is as it was.
    """
    with writing_to(path, "cannot be written"):
        draft(path, fill, scratch=f".{path.name}.unfinished").publish()


State = Mapping[str, torch.Tensor]
_COUNTER = "num_batches_tracked"
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Member:
    """The weights of one model."""

    label: str
    """What to call it."""
    state: State
    """Its tensors by name."""


@dataclass(frozen=True)
class Soup:
    """The average of some models."""

    state: dict[str, torch.Tensor]
    """Tensors by name; tied ones are one tensor still."""
    shares: tuple[tuple[str, float], ...]
    """Label of each member, and its share."""
    statistics: tuple[str, ...] = ()
    """Names of running means and variances that were averaged, too: they are not those of the averaged weights."""


def average(members: Sequence[Member], weights: Sequence[float] | None = None) -> Soup:
    """Compute the weighted mean of every tensor of fractions, in double precision.

    Whole numbers and flags must agree; of the counters of batch norm the largest is taken.

    Args:
        members: At least one; all have tensors of the same names and shapes.
        weights: How much each counts, 0 or above; divided by their sum. None: all the same.

    Raises:
        UserError: Names, shapes or whole numbers differ, a mean is not finite, or the weights cannot be used.
    """
    shares = _shares(members, weights)
    _check_alike(members)
    means: dict[Any, torch.Tensor] = {}
    state, statistics = dict[str, torch.Tensor](), list[str]()
    for name in members[0].state:
        tensors = [member.state[name] for member in members]
        place: Any = tuple((tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors)
        place = place if tensors[0].numel() else name  # an empty tensor has no place
        if place not in means:
            means[place] = _mean(name, tensors, shares, members)
        state[name] = means[place]
        if name.endswith(_STATISTICS) and not _equal(tensors):
            statistics.append(name)
    labels = (member.label for member in members)
    return Soup(state, tuple(zip(labels, shares)), tuple(statistics))


def _shares(members: Sequence[Member], weights: Sequence[float] | None) -> list[float]:
    if not members:
        raise UserError("there is nothing to average")
    given = [1.0] * len(members) if weights is None else list(weights)
    usable = len(given) == len(members) and all(math.isfinite(weight) and weight >= 0 for weight in given)
    if not usable or not sum(given) > 0:
        expected = f"{len(members)} numbers, one a model: 0 or above, and one of them above 0"
        raise UserError("the models cannot be weighted so", argument="weights", expected=expected, received=given)
    return [weight / sum(given) for weight in given]


def _check_alike(members: Sequence[Member]) -> None:
    first = members[0]
    lines: list[str] = []
    for other in members[1:]:
        one, two = first.state, other.state
        lines += [f"{name} is missing in {other.label}" for name in one if name not in two]
        lines += [f"{name} is in {other.label} only" for name in two if name not in one]
        both = [(name, _text(one[name]), _text(two[name])) for name in one if name in two]
        lines += [f"{name} is {here} here and {there} in {other.label}" for name, here, there in both if here != there]
    if lines:
        what = f"only models of one architecture can be averaged{listed(lines)}"
        raise UserError(what, key=first.label, family="weights")


def _text(tensor: torch.Tensor) -> str:
    kind = "fractions" if tensor.is_floating_point() else "complex" if tensor.is_complex() else format_text(tensor)
    return f"{shape_text(tensor.shape)} {kind}"


def _mean(
    name: str, tensors: Sequence[torch.Tensor], shares: Sequence[float], members: Sequence[Member]
) -> torch.Tensor:
    first = tensors[0].detach().cpu()
    if _equal(tensors):
        return first.clone()  # to the bit, and infinities stay what they are
    if name.endswith(_COUNTER):
        return torch.stack([tensor.detach().cpu() for tensor in tensors]).amax(0)
    if not (first.is_floating_point() or first.is_complex()):
        other = next(m.label for m, tensor in zip(members, tensors) if not _equal([tensors[0], tensor]))
        what = f"{name} holds {format_text(first)} values, which cannot be averaged, and they differ"
        raise UserError(what, key=members[0].label, received=other, family="weights")
    wide = torch.complex128 if first.is_complex() else torch.float64
    total = torch.zeros(first.shape, dtype=wide)
    for tensor, share in zip(tensors, shares):
        if share:  # 0 times infinity is no number
            total += tensor.detach().cpu().to(wide) * share
    if not torch.isfinite(total).all():
        fix = "leave out the model that went wrong: lightkit ckpt diff shows it"
        raise UserError(f"the mean of {name} is not finite", key=members[0].label, fix=fix, family="weights")
    kind = tensors[0].dtype
    for tensor in tensors:
        kind = torch.promote_types(kind, tensor.dtype)
    return total.to(kind)


def _equal(tensors: Sequence[torch.Tensor]) -> bool:
    return all(same_bits(tensors[0], tensor) for tensor in tensors[1:])
