"""Adapter files: what a fine-tuned model has beyond the weights it started from, and which weights those were.

change = delta(model.state_dict(), base, names, source="resnet.pth")
write_delta(folder / "adapter.pt", change)
apply_delta(fresh, read_delta(folder / "adapter.pt"), base_fingerprint=fingerprint(base))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightkit.checkpoint.compare import bits, in_words, listed, same_bits
from lightkit.checkpoint.export import write_file
from lightkit.checkpoint.files import to_plain
from lightkit.checkpoint.fitting import LoadReport, check_finite
from lightkit.checkpoint.formats import open_file
from lightkit.checkpoint.names import unwrapped
from lightkit.common.errors import UNREADABLE, UserError

FORMAT = "lightkit adapter"
VERSION = 1
_KINDS: dict[str, type] = {"base": dict, "tensors": dict, "tied": dict, "kept": list, "config": str}


@dataclass(frozen=True)
class Delta:
    """The tensors of a model that are not those of its base, by the model's names."""

    tensors: dict[str, torch.Tensor]
    """What differs from the base in a bit, a shape or a type, or is not in it; tied tensors under their first name."""
    tied: dict[str, str]
    """The other names of tied tensors, with the name under `tensors`."""
    kept: tuple[str, ...]
    """Names of the tensors that are the base's own."""
    fingerprint: str
    """`fingerprint` of the base."""
    source: str = ""
    """Where the base came from, for people."""
    config: str = field(default="", repr=False)
    """Configuration the model is built from, as YAML."""


def fingerprint(base: Mapping[str, Any]) -> str:
    """Hash names, types, shapes and bytes of tensors by SHA-256, in hex.

    Prefixes of wrappers, the order of the names and the device make no difference; what is not a tensor is left out.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors(base).items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(bits(tensor).numpy().data)
    return digest.hexdigest()


def delta(
    state: Mapping[str, Any],
    base: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    *,
    source: str = "",
    config: str = "",
) -> Delta:
    """Find what a model has beyond its base, by comparing all tensors bit by bit.

    Args:
        state: `state_dict` of the model; the tensors themselves, so that tied ones can be told.
        base: The tensors that came from the base. One that is missing here (a new head) counts as different.
        names: Name in `state` to name in `base`, for those that the base may have; None: the same names.
        source: Where the base came from.
        config: Configuration of the model as YAML.
    """
    live, there = _tensors(state), _tensors(base)
    in_base = {name: name for name in live} if names is None else {own: names[name] for name, own in _own(names)}
    tensors, tied, kept = dict[str, torch.Tensor](), dict[str, str](), list[str]()
    for group in _tied(live):
        pairs = [(live[name], there[in_base[name]]) for name in group if in_base.get(name) in there]
        if pairs and all(same_bits(one, other) for one, other in pairs):
            kept += group
            continue
        tensors[group[0]] = live[group[0]].detach()
        tied |= dict.fromkeys(group[1:], group[0])
    return Delta(tensors, tied, tuple(kept), fingerprint(there), source, config)


def write_delta(path: Path, change: Delta) -> None:
    """Write an adapter file: tensors and plain types, which `torch.load` opens with `weights_only=True`.

    Raises:
        UserError: The file cannot be written; one of that name is as it was.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "base": {"fingerprint": change.fingerprint, "source": change.source},  # what it has to be put on top of
        "config": change.config,  # text, so that no configuration class is needed to open the file
        "tensors": {name: tensor.detach().cpu() for name, tensor in change.tensors.items()},
        "tied": dict(change.tied),  # further names of tensors above
        "kept": list(change.kept),  # names that are the base's own: the model must have these and no others
    }
    plain = to_plain(content)
    write_file(path, lambda file: torch.save(plain, file))


def read_delta(path: Path | str) -> Delta:
    """Read an adapter file onto the CPU.

    Raises:
        UserError: It is missing, damaged, of a later version or no adapter file (exit code 5).
    """
    content = open_file(Path(path))
    if not is_delta(content):
        what = "not an adapter file"
        raise UserError(what, key=str(path), expected=f"a file with `format: {FORMAT}`", exit_code=UNREADABLE)
    if not isinstance(content.get("version"), int) or content["version"] > VERSION:
        what = f"the adapter file has format version {content.get('version')}; this lightkit reads up to {VERSION}"
        raise UserError(what, key=str(path), fix="install a newer lightkit", exit_code=UNREADABLE)
    odd = [key for key, kind in _KINDS.items() if not isinstance(content.get(key), kind)]
    if odd or not _whole(content):
        what = f"the adapter file is not complete ({', '.join(odd) or 'base, tensors or tied'})"
        raise UserError(what, key=str(path), exit_code=UNREADABLE)
    base, tensors = content["base"], content["tensors"]
    kept = tuple(content["kept"])
    return Delta(tensors, content["tied"], kept, base["fingerprint"], base["source"], content["config"])


def is_delta(content: object) -> bool:
    """Tell whether what was read from a file is the content of an adapter file."""
    return isinstance(content, Mapping) and content.get("format") == FORMAT


def apply_delta(model: nn.Module, change: Delta, *, base_fingerprint: str, base_source: str = "") -> LoadReport:
    """Put an adapter file's tensors into a model that holds the base. What is refused changes nothing.

    Args:
        model: The model, built and injected as the adapter's configuration says, wrapped or not, on any device.
        change: From `read_delta`.
        base_fingerprint: `fingerprint` of the weights the model holds.
        base_source: Where those came from, for the message.

    Returns:
        What was loaded, by name.

    Raises:
        UserError: The base is another one, the model has other tensors than the one the adapter was written for, or
            some are not finite.
    """
    if base_fingerprint != change.fingerprint:
        raise UserError(
            "the adapter belongs to other base weights; nothing was loaded",
            key="finetune.weights.path",
            expected=f"{change.source or 'weights'} with fingerprint {change.fingerprint}",
            received=f"{base_source or 'weights'} with fingerprint {base_fingerprint}",
            fix="give the very weights it was trained on, loaded with the same mapping and head",
        )
    here = _tensors(model.state_dict())
    values = change.tensors | {name: change.tensors[first] for name, first in change.tied.items()}
    _check_fit(here, values, change)
    check_finite(values, built=here, source="finetune.weights.adapter")
    with torch.no_grad():
        for name, tensor in values.items():
            here[name].copy_(tensor)
    return LoadReport(f"adapter on top of {change.source or change.fingerprint[:12]}", loaded=tuple(values))


def _check_fit(here: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor], change: Delta) -> None:
    known = values.keys() | set(change.kept)
    lines = [f"only in the adapter: {name}" for name in (*values, *change.kept) if name not in here]
    lines += [f"only in the model: {name}" for name in here if name not in known]
    lines += [
        f"{name} is {in_words(here[name])} in the model and {in_words(tensor)} in the adapter"
        for name, tensor in values.items()
        if name in here and in_words(here[name]) != in_words(tensor)
    ]
    if lines:
        what = f"the adapter was written for another model; nothing was loaded{listed(lines)}"
        fix = "build the model from the configuration in the adapter file"
        raise UserError(what, key="finetune.weights.adapter", fix=fix)


def _own(names: Iterable[str]) -> list[tuple[str, str]]:
    return list(unwrapped(names).items())


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors by the model's own names, without prefixes of wrappers."""
    return {own: state[name] for name, own in _own(state) if isinstance(state[name], torch.Tensor)}


def _tied(state: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Group the names of the same memory, in the order of the first of them."""
    groups: dict[Any, list[str]] = {}
    for name, tensor in state.items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        groups.setdefault(place if tensor.numel() else name, []).append(name)
    return list(groups.values())


def _whole(content: Mapping[str, Any]) -> bool:
    tensors, base = content["tensors"], content["base"]
    named = isinstance(base.get("fingerprint"), str) and isinstance(base.get("source"), str)
    tied = all(first in tensors for first in content["tied"].values())
    return named and tied and all(isinstance(value, torch.Tensor) for value in tensors.values())
