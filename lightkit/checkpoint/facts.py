"""What is in a file of weights or a checkpoint, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightkit.checkpoint import manifest
from lightkit.checkpoint.compare import format_text, leaves, shape_text
from lightkit.checkpoint.content import upgrade
from lightkit.checkpoint.delta import read_delta
from lightkit.checkpoint.formats import ARCHIVE, kind_of, open_file
from lightkit.checkpoint.reading import LABEL, DamagedError, check_bytes, entry_of, rebuild
from lightkit.checkpoint.weights import AdapterFileError, read_weights
from lightkit.common.text import counted


@dataclass(frozen=True)
class Facts:
    """A file in words."""

    lines: list[tuple[str, str]]
    """Label and text of each fact."""
    tensors: list[tuple[str, str, str]]
    """Name, shape and type of each tensor of the weights."""
    config: str = ""
    """The configuration a lightkit checkpoint carries, as YAML."""


def describe(path: Path, *, trust: bool = False, key: str | None = None) -> Facts:
    """Describe what is in a file.

    Args:
        path: A file of any kind that `read_weights` knows.
        trust: Open a pickle of Python objects.
        key: Where in the file the weights are.

    Raises:
        UserError: It is damaged, holds code or no weights (exit code 5).
    """
    try:
        weights = read_weights(path, trust=trust, key=key)
    except AdapterFileError:
        return _adapter(path)
    lines = _file_lines(weights.path, weights.kind + (f", weights in {weights.key}" if weights.key else ""))
    config = ""
    if weights.kind == "lightkit checkpoint":
        content = open_file(weights.path)
        label, content = content[LABEL], upgrade(content)
        optimizer, value, average = content["optimizer"], label["value"], content["ema"]
        done = "" if label["epoch"] is None else f", {counted(label['epoch'], 'epoch')} done"
        groups = counted(len(optimizer["groups"]), "group")
        lines += [
            ("format", f"version {content['version']}, written with PyTorch {content['torch']}"),
            ("step", f"{label['step']}{done}"),
            ("value", "not measured at this step" if value is None else f"{value:.6g}"),
            ("optimizer", f"{optimizer['kind']}, {groups}, {amount(optimizer['state'])}"),
        ]
        lines += [("average", f"over {counted(average['steps'], 'step')}")] if average else []
        parts = ("callbacks", "metrics")
        kept = [f"{group}.{name}" for group in parts for name, state in content[group].items() if state]
        lines += [("also", ", ".join(kept))] if kept else []
        config = content["config"]
    lines.append(("weights", amount(weights.state)))
    if weights.left_out:
        lines.append(("besides", ", ".join(weights.left_out)))
    return Facts(lines, _rows(weights.state), config)


def outside(path: Path) -> list[tuple[str, str]]:
    """Label and describe what can be said of a file without reading it, also of a damaged one."""
    lines = [("file", str(path)), ("size", size_text(path.stat().st_size))]
    entry = entry_of(path)
    if entry is None:
        return lines
    listed = {"size": size_text(entry.bytes), "step": entry.step, "epoch": entry.epoch, "value": entry.value}
    return [*lines, ("manifest", ", ".join(f"{name} {fact}" for name, fact in listed.items() if fact is not None))]


def checkpoints(folder: Path, *, listed: bool = True) -> list[dict[str, Any]]:
    """List the checkpoints of a folder, oldest first, each with whether its file is whole (`state`).

    Args:
        folder: The folder.
        listed: Go by the manifest; otherwise by the files that are whole, for a folder whose manifest is damaged.

    Raises:
        OSError: The manifest cannot be read.
        ManifestError: It is damaged.
    """
    entries = sorted(manifest.read(folder) if listed else rebuild(folder), key=lambda entry: entry.step)
    mode = manifest.read_mode(folder)
    best = manifest.ranked(entries, mode)[:1] if mode else []
    rows = []
    for entry in entries:
        try:
            check_bytes(folder / entry.file, entry)
            state = "whole"
        except DamagedError as error:
            state = f"damaged: {error}"
        marks = ["best"] * (entry in best) + ["newest"] * (entry is entries[-1])
        facts = {"file": entry.file, "step": entry.step, "epoch": entry.epoch, "value": entry.value}
        rows.append({**facts, "size": size_text(entry.bytes), "state": state, "mark": ", ".join(marks)})
    return rows


def amount(value: Any) -> str:
    """Count the numbers in nested tensors, by type."""
    tensors = [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
    kinds = ", ".join(dict.fromkeys(map(format_text, tensors)))
    count = sum(tensor.numel() for tensor in tensors)
    return f"{count:,} numbers in {counted(len(tensors), 'tensor')}" + (f" ({kinds})" if kinds else "")


def size_text(count_bytes: float) -> str:
    """Write a number of bytes as `1.2 MB`."""
    for unit in ("bytes", "kB", "MB"):
        if count_bytes < 1000:
            return f"{count_bytes:.3g} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.3g} GB"


def _adapter(path: Path) -> Facts:
    change = read_delta(path)
    lines = [
        *_file_lines(path, "adapter: what differs from its base weights"),
        ("base", f"{change.source or 'not named'}, fingerprint {change.fingerprint}"),
        ("weights", amount(change.tensors)),
        ("besides", f"{counted(len(change.kept), 'tensor')} are the base's own"),
    ]
    tied = [(name, "", f"tied to {first}") for name, first in change.tied.items()]
    return Facts(lines, [*_rows(change.tensors), *tied], change.config)


def _file_lines(path: Path, kind: str) -> list[tuple[str, str]]:
    entry = entry_of(path)
    if entry is not None and entry.sha256:  # `read_weights` has compared it, and would have refused the file
        checksum = "checksum as in the manifest"
    else:
        checksum = "the archive's own checksums are right" if kind_of(path) == ARCHIVE else "no checksum known"
    return [("file", str(path)), ("kind", kind), ("size", f"{size_text(path.stat().st_size)}, {checksum}")]


def _rows(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, str, str]]:
    return [(name, shape_text(tensor.shape), format_text(tensor)) for name, tensor in tensors.items()]
