"""What a checkpoint holds: one dictionary, one line per key, tensors and plain types only.

Random generators are not in it: randomness is a function of seed, epoch and position.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import lightkit.checkpoint.optimizer_state as optimizer_state
from lightkit.checkpoint.reading import read
from lightkit.common.errors import UNREADABLE, UserError, UserErrors
from lightkit.common.modules import all_like, is_shard, whole

VERSION = 1
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""How to turn the content of a format version into that of the next one; kept for every version ever written."""


class Stateful(Protocol):
    """Something that can be saved: plain types and tensors out, the same back in."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on as if never stopped."""

    def load_state_dict(self, state: dict[str, Any], /) -> object:
        """Restore a saved state."""


def gather(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Stateful,
    precision: Stateful,
    callbacks: Mapping[str, Stateful],
    metrics: Mapping[str, Stateful],
    state: Stateful,
    ema: Stateful | None = None,
    config_text: str = "",
) -> dict[str, Any]:
    """Collect the whole state of a run. The tensors are the live ones: save or copy before the next step.

    Args:
        model: The bare model, without the wrappers of parallel training.
        optimizer: Its optimizer; every parameter must be one of the model's.
        scheduler: Learning-rate schedule.
        precision: Precision, with the loss scale where there is one.
        callbacks: Callbacks by name.
        metrics: Accumulating metrics by split.
        state: The counters.
        ema: Moving average of the weights; its `state_dict` has them under `weights`, by the model's names.
        config_text: The resolved configuration as YAML.
    """
    weights = model.state_dict()
    metadata = getattr(weights, "_metadata", {})
    versions = {path: facts["version"] for path, facts in metadata.items() if facts.get("version", 1) != 1}
    unite: Callable[[Any], Any] = whole if any(map(is_shard, weights.values())) else lambda values: values
    return {
        "version": VERSION,  # of this layout; `upgrade` reads the older ones
        "torch": str(torch.__version__),  # bits are only promised for the same build
        "threads": torch.get_num_threads(),  # sums of many floats differ between thread counts
        "model": unite(dict(weights)),  # parameters and buffers by the model's own names
        "model_versions": versions,  # for modules that read their older layouts
        "optimizer": unite(optimizer_state.by_name(optimizer, model)),  # momentum and the like, by parameter name
        "scheduler": scheduler.state_dict(),  # where on its curve the learning rate is
        "precision": precision.state_dict(),  # loss scale
        "ema": None if ema is None else unite(ema.state_dict()),  # averaged weights and how far the average has come
        "callbacks": _states(callbacks),  # patience of early stopping and the like, by callback name
        "metrics": _states(metrics),  # half-accumulated metrics, by split
        "state": state.state_dict(),  # epoch, samples done in it, optimizer steps, history
        "config": config_text,  # text, so that no configuration class is needed to open the file
    }


def apply(
    content: dict[str, Any],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Stateful,
    precision: Stateful,
    callbacks: Mapping[str, Stateful],
    metrics: Mapping[str, Stateful],
    state: Stateful,
    ema: Stateful | None = None,
) -> None:
    """Put a saved state into freshly built parts. Everything is compared first: what does not fit changes nothing.

    Raises:
        UserError: The content was written for another model, optimizer or set of callbacks; the message names what is
            missing and what is not expected.
    """
    content = upgrade(content)
    errors = [
        *model_problems(content["model"], model),
        *optimizer_state.problems(content["optimizer"], optimizer, model),
        *_set_problems(content, callbacks=callbacks, metrics=metrics),
    ]
    if (content["ema"] is None) != (ema is None):
        with_or_without = "with" if ema is None else "without"
        what = f"the checkpoint was written {with_or_without} a moving average"
        errors.append(optimizer_state.misfit(what, key="trainer.ema.decay"))
    if errors:
        raise UserErrors(errors) if len(errors) > 1 else errors[0]
    converted = optimizer_state.from_names(content["optimizer"], optimizer, model)
    single = {"scheduler": scheduler, "precision": precision, "state": state} | ({"ema": ema} if ema else {})
    jobs = [(name, part, content[name]) for name, part in single.items()]
    for group, parts in (("callbacks", callbacks), ("metrics", metrics)):
        jobs += [(f"{group}.{name}", parts[name], values) for name, values in content[group].items() if values]
    _load_all_or_none(jobs)
    load_model(model, _with_versions(content["model"], content["model_versions"]))
    names = [name for group in optimizer_state.group_names(optimizer, model) for name in group]
    formats = {number: content["model"][name].dtype for number, name in enumerate(names)}
    optimizer_state.load(optimizer, converted, formats=formats)
    scheduler.load_state_dict(content["scheduler"])  # again: the optimizer brought the rates of its file along


def load_model(model: nn.Module, weights: dict[str, Any]) -> None:
    """Load whole tensors into a model, also where each process holds a part of it."""
    ordered = OrderedDict(all_like(weights, model.state_dict()))
    ordered._metadata = getattr(weights, "_metadata", {})  # type: ignore[attr-defined]
    model.load_state_dict(ordered)


def upgrade(content: dict[str, Any]) -> dict[str, Any]:
    """Convert a content to today's layout.

    Raises:
        UserError: It comes from a later lightkit, or it is none of ours (exit code 5).
    """
    version = content.get("version")
    if not isinstance(version, int) or version < 1:
        raise UserError("not the content of a lightkit checkpoint", received=version, exit_code=UNREADABLE)
    if version > VERSION:
        what = f"the checkpoint has format version {version}; this lightkit reads up to {VERSION}"
        raise UserError(what, fix="install the lightkit it was written with, or a newer one", exit_code=UNREADABLE)
    while version < VERSION:
        content = UPGRADES[version](content)
        version = content["version"]
    return content


def load_model_state(path: Path, *, averaged: bool = True) -> dict[str, torch.Tensor]:
    """Read the weights of a checkpoint file alone, by the model's names, on the CPU.

    Args:
        path: A checkpoint file.
        averaged: Take the moving average where the run kept one, as its validation did.

    Raises:
        UserError: The file is missing, damaged or of a later version (exit code 5).
    """
    content = upgrade(read(path))
    return _with_versions(model_state(content, averaged=averaged), content["model_versions"])


def model_state(content: dict[str, Any], *, averaged: bool = True) -> dict[str, torch.Tensor]:
    """Return the weights in a content of today's layout, on request those of the moving average if there is one."""
    weights = dict(content["model"])
    if averaged and content["ema"] is not None:
        weights.update(content["ema"]["weights"])
    return weights


def model_problems(saved: dict[str, Any], model: nn.Module) -> list[UserError]:
    """List why saved weights do not fit a model, by name and shape; nothing is changed."""
    here = model.state_dict()
    problems = optimizer_state.name_problems(list(saved), list(here), what="weights", key="model")
    for name in saved:
        if name in here and _shape(saved[name]) != _shape(here[name]):
            what = f"{name} has another shape in the checkpoint"
            shapes = {"expected": str(_shape(here[name])), "received": _shape(saved[name])}
            problems.append(optimizer_state.misfit(what, key="model", **shapes))
    return problems


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _with_versions(weights: dict[str, torch.Tensor], versions: dict[str, int]) -> dict[str, torch.Tensor]:
    """Add module versions to weights, as `state_dict` does for `load_state_dict`."""
    ordered = OrderedDict(weights)
    paths = {"", *(name.rpartition(".")[0] for name in weights), *versions}
    ordered._metadata = {path: {"version": versions.get(path, 1)} for path in paths}  # type: ignore[attr-defined]
    return ordered


def _states(parts: Mapping[str, Stateful]) -> dict[str, dict[str, Any]]:
    return {name: part.state_dict() for name, part in parts.items()}


def _set_problems(content: dict[str, Any], **groups: Mapping[str, Stateful]) -> Iterator[UserError]:
    for group, parts in groups.items():
        saved, here = content[group], _states(parts)
        wanted = [name for name in here if name in saved or here[name]]
        there = [name for name in saved if name in here or saved[name]]
        yield from optimizer_state.name_problems(there, wanted, what="state", key=group)


def _load_all_or_none(jobs: list[tuple[str, Stateful, dict[str, Any]]]) -> None:
    """Load each part; when one refuses, give those before it their old state back."""
    done: list[tuple[Stateful, dict[str, Any]]] = []
    for name, part, saved in jobs:
        done.append((part, copy.deepcopy(part.state_dict())))
        try:
            part.load_state_dict(saved)
        except Exception as error:
            for earlier, before in reversed(done):
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    earlier.load_state_dict(before)
            if isinstance(error, UserError):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise optimizer_state.misfit(f"the saved state does not fit this run ({reason})", key=name) from error
