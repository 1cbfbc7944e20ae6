"""What trackers have of a run, read from their own files."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightkit.common.ledger import MACHINE
from lightkit.runs.reading import read_jsonl

SHORT = (
    "data=wine", "model.hidden=[8]", "trainer.epochs=3", "checkpoint.every_steps=3", "logger.every_steps=2",
    "logger.tensorboard.enabled=false", "device=cpu",
)  # fmt: skip
RUN = "outputs/runs/one"
_BLOCK, _HEADER, _MAGIC = 32768, struct.Struct("<IHB"), 7


def logged(folder: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`."""
    return [told(row) for row in read_jsonl(folder / "metrics.jsonl")]


def told(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what differs between two runs that do the same, None for what is no number."""
    kept = {name: value for name, value in row.items() if name != "time" and not name.startswith((*MACHINE, "_"))}
    return {
        name: None if value in ("NaN", "nan") or (isinstance(value, float) and math.isnan(value)) else value
        for name, value in kept.items()
    }


def records(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: chunks in blocks, each with checksum, length and place in its record."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, record = path.read_bytes(), _MAGIC, b""
    while at + _HEADER.size <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:
            at += left
            continue
        _, size, place = _HEADER.unpack_from(content, at)
        chunk = content[at + _HEADER.size : at + _HEADER.size + size]
        if not place or len(chunk) < size:
            return
        record, at = record + chunk, at + _HEADER.size + size
        if place in (1, 4):  # the whole of a record, or its last part
            made = Record()
            made.ParseFromString(record)
            yield made
            record = b""


class Offline:
    """A run of Weights & Biases in its folder, that only one of its files may be about."""

    def __init__(self, folder: Path) -> None:
        (file,) = (folder / "trackers/wandb").glob("offline-run-*/*.wandb")
        self.folder, self.records = file.parent, [*records(file)]

    def history(self) -> list[dict[str, Any]]:
        return [_items(record.history.item) for record in self.records if record.WhichOneof("record_type") == "history"]

    def rows(self) -> list[dict[str, Any]]:
        return [told(row) for row in self.history() if "epoch" in row]

    def media(self) -> dict[str, list[int]]:
        """By name, at which steps there are pictures and texts, whose files are there."""
        found: dict[str, list[int]] = {}
        for row in self.history():
            for name in row:
                title, _, what = name.rpartition("/")
                if what == "_type":
                    paths = [row.get(f"{title}/path"), *row.get(f"{title}/filenames", ())]
                    assert all((self.folder / "files" / path).exists() for path in filter(None, paths)), row
                    found.setdefault(title, []).append(row["step"])
        return found

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for record in self.records:
            if record.WhichOneof("record_type") == "summary":
                found |= _items(record.summary.update)
        return found

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for record in self.records:
            found |= _items(record.run.config.update) | _items(record.config.update)
        return found

    def run(self) -> Any:
        return [record.run for record in self.records if record.WhichOneof("record_type") == "run"][-1]

    def exit_code(self) -> int:
        return [record.exit.exit_code for record in self.records if record.WhichOneof("record_type") == "exit"][-1]


def _items(items: Sequence[Any]) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
