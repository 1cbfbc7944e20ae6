"""Writing weights for others to read: a bare state dict, safetensors, a whole model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from lightkit.checkpoint.content import upgrade
from lightkit.checkpoint.files import to_plain, write_atomically
from lightkit.checkpoint.fitting import fit
from lightkit.checkpoint.reading import LABEL, reason
from lightkit.common import run_files
from lightkit.common.errors import UserError

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
    try:
        write_atomically(path, fill, scratch=f".{path.name}.unfinished")
    except OSError as error:
        raise UserError(f"cannot be written: {reason(error)}", key=str(path), family="cannot-write") from error
