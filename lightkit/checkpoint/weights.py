"""Weights from elsewhere: read from any known kind of file, and put into a model.

    weights = read_weights("resnet.pth")
    report = load_weights(model, weights, strict="complete", head="keep")

| what is given | what is taken |
| --- | --- |
| folder of a lightkit run, or its `checkpoints/` | those of its best checkpoint |
| lightkit checkpoint | its weights; the moving average where there is one |
| Lightning `.ckpt`, timm and other training files | the state dict in it; a moving average before the rest |
| state dict `.pt`, `.pth`, `.bin`; safetensors | all tensors |
| folder of a Hugging Face model | `model.safetensors` or `pytorch_model.bin`, also in several files |
| pickle of a whole model | its state dict, with `trust=True` only |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lightkit.checkpoint.manifest as manifest
from lightkit.checkpoint import content as lightkit_content
from lightkit.checkpoint.delta import is_delta
from lightkit.checkpoint.fitting import LoadReport, fit
from lightkit.checkpoint.formats import SAFETENSORS, kind_of, open_file, shards, unreadable
from lightkit.checkpoint.names import renamed, unwrapped
from lightkit.checkpoint.reading import LABEL
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UNREADABLE, UserError

__all__ = ["LoadReport", "Weights", "load_weights", "read_weights"]

_LOG = logging.getLogger(__name__)
_PLACES = (
    "state_dict_ema", "model_ema", "ema_state_dict", "ema", "state_dict", "model_state_dict", "model_state", "model",
    "net", "network", "weights", "params", "module",
)  # fmt: skip
"""Where training scripts keep their state dict; averaged weights first, as they are the ones that were evaluated."""
_FOLDERS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Weights:
    """Tensors by name, on the CPU, and where they come from."""

    state: dict[str, torch.Tensor]
    """The tensors under the names of the model itself, without prefixes of wrappers and after the mapping."""
    path: Path
    """The file they were read from; for weights in several files the index."""
    kind: str
    """What the file is: `lightkit checkpoint`, `Lightning checkpoint`, `training file`, `state dict`, `safetensors` or
    `whole model`."""
    key: str | None = None
    """Where in the file they are; None where they are all of it."""
    left_out: tuple[str, ...] = ()
    """Entries beside the tensors that are not tensors."""

    @property
    def source(self) -> str:
        """The file, and where in it."""
        return f"{self.path} ({self.key})" if self.key else str(self.path)


class AdapterFileError(UserError):
    """An adapter file was given where weights are wanted.

    Args:
        path: The file.
        content: What is in it.
    """

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        base = content.get("base") or {}
        super().__init__(
            "this is an adapter file: it holds only what differs from its base weights, and needs them",
            key=str(path),
            expected=f"it on top of {base.get('source') or 'weights'} with fingerprint {base.get('fingerprint')}",
            fix=f"lightkit ckpt merge {path} OUT writes the full model; finetune.weights.adapter={path} uses it",
            family="weights",
        )


def read_weights(
    path: Path | str,
    *,
    trust: bool = False,
    key: str | None = None,
    mapping: Mapping[str, str | None] | None = None,
    asked: str = "",
) -> Weights:
    """Read weights from a file or folder of any known kind, onto the CPU.

    Args:
        path: The file or folder; see the table above.
        trust: Open a pickle of Python objects, which runs the code in it. Only for files whose origin is known.
        key: Where in the file they are, such as `model` or `ema.weights`; None looks in the usual places.
        mapping: New names by pattern, applied in order; see `lightkit.checkpoint.names.renamed`. Prefixes of
            DataParallel and `torch.compile` are gone before.
        asked: What stands before the names of these arguments where a user gives them: `finetune.weights.`.

    Raises:
        UserError: The file is missing, damaged, holds code or no weights (exit code 5), or the mapping does not fit it.
    """
    files, shown = _located(Path(path))
    parts = [_read(file, trust=trust, key=key, asked=asked) for file in files]
    state = {name: tensor for part in parts for name, tensor in part.state.items()}
    state = {own: state[name] for name, own in unwrapped(state).items()}
    if mapping:
        state = {new: state[old] for old, new in renamed(list(state), mapping).items()}
    left_out = tuple(name for part in parts for name in part.left_out)
    return Weights(state, shown, parts[0].kind, parts[0].key, left_out)


def load_weights(
    model: nn.Module,
    weights: Weights,
    *,
    strict: str = "exact",
    head: str = "refuse",
    head_name: str | Sequence[str] | None = None,
    asked: str = "",
) -> LoadReport:
    """Put weights into a model. All that is wanted fits, or the model stays as it is.

    Args:
        model: The model, wrapped or not, on any device; the values take the precision of its tensors.
        weights: From `read_weights`.
        strict: `exact`: both sides have the same names; `complete`: the model finds all of its own; `matching`:
            whatever fits by name and shape.
        head: The last layer: `keep` takes what fits of it and leaves the rest as the model was built, `reset` leaves
            all of it so, `refuse` refuses one that does not fit.
        head_name: Name of the last layer's module, such as `classifier.3`, or several; None goes by the usual names.
        asked: What stands before the names of these arguments where a user gives them: `finetune.weights.`.

    Returns:
        What was loaded and what not, by name.

    Raises:
        UserError: The weights do not fit, or hold NaN or infinities; the message lists the names.
    """
    how: dict[str, Any] = {"strict": strict, "head": head, "head_name": head_name, "asked": asked}
    return fit(model, weights.state, source=weights.source, finite=True, **how)


def _located(path: Path) -> tuple[list[Path], Path]:
    """Find the files to read for what was given, and what to call them."""
    if not path.is_dir():
        return [path], path
    folder = path / run_files.CHECKPOINTS if (path / run_files.CHECKPOINTS).is_dir() else path
    if any(file.name == run_files.MANIFEST or manifest.is_checkpoint_name(file.name) for file in folder.iterdir()):
        mode = manifest.read_mode(folder)
        store = CheckpointStore(folder, mode=mode or "max")
        best = store.best() if mode else None
        chosen = best or store.newest()
        if chosen is None:
            raise unreadable(folder, "it holds no checkpoint")
        if best is None:
            _LOG.warning("%s: no best checkpoint is known; the newest is taken", folder)
        return [chosen], chosen
    if (path / run_files.ENSEMBLE_WEIGHTS).is_file():
        what = "this is the run of an ensemble: it has the weights of several networks, and one is wanted"
        fix = f"one of its members: {path / run_files.MEMBERS}/NAME"
        raise UserError(what, key=str(path), fix=fix, family="ensemble")
    model_file = next((path / name for name in _FOLDERS if (path / name).exists()), None)
    if model_file is None:
        raise unreadable(path, f"neither a lightkit run nor a folder with {' or '.join(_FOLDERS)}")
    return (shards(model_file) if model_file.suffix == ".json" else [model_file]), model_file


def _read(path: Path, *, trust: bool, key: str | None, asked: str) -> Weights:
    content = open_file(path, trust=trust, asked=asked)
    if kind_of(path) == SAFETENSORS:
        return _weights(content, path, SAFETENSORS, None)
    if isinstance(content, nn.Module):
        return _weights(content.state_dict(), path, "whole model", None)
    if not isinstance(content, Mapping):
        raise unreadable(path, f"it holds a {type(content).__name__}, not tensors by name")
    if is_delta(content) and key is None:
        raise AdapterFileError(path, content)
    if LABEL in content and isinstance(content.get("model"), dict) and key is None:
        has_average = content.get("ema") is not None
        state = lightkit_content.model_state(lightkit_content.upgrade(dict(content)))
        return _weights(state, path, "lightkit checkpoint", "moving average" if has_average else "model")
    place, state_dict = _walk(content, key, path, asked) if key else _search(content, path, asked)
    kinds = {LABEL: "lightkit checkpoint", "pytorch-lightning_version": "Lightning checkpoint"}
    usual = "training file" if place else "state dict"
    kind = next((name for entry, name in kinds.items() if entry in content), usual)
    return _weights(state_dict, path, kind, place or None)


def _weights(state: Mapping[str, Any], path: Path, kind: str, key: str | None) -> Weights:
    tensors = {name: value.detach() for name, value in state.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise unreadable(path, f"there are no tensors under {key!r}" if key else "it holds no tensors")
    return Weights(tensors, path, kind, key, tuple(str(name) for name in state if name not in tensors))


def _walk(content: Any, key: str, path: Path, asked: str) -> tuple[str, Mapping[str, Any]]:
    """Return what lies under a dotted key."""
    for part in key.split("."):
        choices = [str(name) for name in content] if isinstance(content, Mapping) else []
        if part not in choices:
            what = f"the file has no such entry ({asked}key)" if asked else "the file has no such entry"
            raise UserError(what, key=str(path), received=key, choices=choices, exit_code=UNREADABLE)
        content = content[part]
    state = content.state_dict() if isinstance(content, nn.Module) else content
    if not isinstance(state, Mapping):
        raise unreadable(path, f"there are no tensors under {key!r}")
    return key, state


def _search(content: Mapping[str, Any], path: Path, asked: str) -> tuple[str, Mapping[str, Any]]:
    """Find the state dict in a file, wherever training scripts put it."""
    nested = _nested(content, depth=2)
    if nested is None:
        choices = [str(name) for name, value in content.items() if isinstance(value, (Mapping, nn.Module))]
        named = f" ({asked}key)" if asked else ""
        fix = f"name the entry they are in by its key{named}: {', '.join(choices)}" if choices else None
        raise UserError("there are no weights in the usual places", key=str(path), fix=fix, exit_code=UNREADABLE)
    return nested


def _nested(content: Mapping[str, Any], *, depth: int) -> tuple[str, Mapping[str, Any]] | None:
    # What modules keep beside tensors (`get_extra_state`) may be anything.
    values = [value for name, value in content.items() if not str(name).endswith("_extra_state")]
    if values and all(isinstance(value, torch.Tensor) for value in values):
        return "", content
    for name in _PLACES if depth else ():
        value = content.get(name)
        inner = value.state_dict() if isinstance(value, nn.Module) else value
        nested = _nested(inner, depth=depth - 1) if isinstance(inner, Mapping) else None
        if nested:
            return f"{name}.{nested[0]}".rstrip("."), nested[1]
    return None
