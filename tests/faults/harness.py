"""What the tests of faults share: processes to be hurt, the run they do, and how to compare two ends."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.randomness import mix
from lightkit.runs.reading import read_jsonl
from tests.waiting import until
from tests.warm import Running


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """The living child processes of a process."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(text) for path in found for text in path.read_text().split() if alive(int(text))]


@dataclass
class Process:
    """A `lightkit` command in a process, and process group, of its own."""

    place: Path
    project: Path
    running: Running

    @property
    def pid(self) -> int:
        return self.running.pid

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to it and all its children."""
        os.kill(-self.pid if group else self.pid, number)

    def hold(self) -> None:
        """Wait until it has come to where it was told to hold."""
        until(lambda: (self.project / "reached").exists() or self.code is not None, "the run to come to its hold")
        assert self.code is None, self.out + self.err

    def hold_after(self, step: int, folder: str = "run") -> None:
        """The same, and until the checkpoint of a step, which is written in the background, is on the disk."""
        self.hold()
        manifest = self.project / folder / "checkpoints" / "manifest.json"
        until(lambda: manifest.exists() and f'"step": {step},' in manifest.read_text(), "the checkpoint")

    def go(self) -> None:
        """Let it go on."""
        (self.project / "go").touch()

    def wait(self) -> int:
        """Its exit status; negative when a signal ended it."""
        return self.running.wait()

    @property
    def code(self) -> int | None:
        return self.running.code

    @property
    def out(self) -> str:
        return (self.place / "out").read_text()

    @property
    def err(self) -> str:
        return (self.place / "err").read_text()


TRAIN = (
    "train",
    "hydra.run.dir=run",
    "data=custom",
    "data.dataset._target_=faulty.Samples",
    "data.split.by=ordered",
    "data.batch_size=10",
    "model=custom",
    "model._target_=faulty.Net",
    "trainer.epochs=3",
    "logger.console.style=lines",
    "logger.tensorboard.enabled=false",
    "logger.every_steps=1",
    "device=cpu",
    "metrics.figures=[]",
    "metrics.monitor=val/loss",
    "metrics.mode=min",
    "checkpoint.keep_last=3",
)
"""A run of 3 epochs of 6 steps of 10 samples each, in the folder `run`: 18 steps."""


def at(step: int, what: str) -> str:
    """The override that does something after a step."""
    return f"++trainer.callbacks.at={{_target_: faulty.At, step: {step}, what: '{what}'}}"


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return content


def log(folder: Path) -> str:
    return (folder / "run.log").read_text()


def row_at(position: int) -> int:
    """The row that comes at this position of the first epoch of `TRAIN`."""
    order = torch.randperm(63, generator=torch.Generator().manual_seed(mix(0, "order", 0)))
    return int(order[position])


def newest(folder: Path) -> dict[str, Any]:
    """The content of the newest checkpoint, which must be whole."""
    store = CheckpointStore(folder / "checkpoints")
    path = store.newest()
    assert path is not None
    return store.load(path)


def rows(folder: Path) -> list[dict[str, Any]]:
    """The logged values that do not depend on the clock."""
    found = read_jsonl(folder / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name != "time" and "speed" not in name} for row in found]


def assert_ended(process: Process, folder: Path, code: int, *texts: str) -> None:
    """A run ended with a message, no traceback, and the record of it."""
    assert process.code == code, process.out + process.err
    assert "Traceback" not in process.err
    for text in texts:
        assert text in process.err
    assert result(folder)["status"] == "failed"
    assert texts[0].removeprefix("error: ") in log(folder)


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs ended with the same weights, state and logged values."""
    first, second = newest(one), newest(other)
    assert first["state"] | {"last": {}} == second["state"] | {"last": {}}
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name
    assert rows(one) == rows(other)
    assert result(one)["test"] == result(other)["test"]
    assert result(other)["status"] == "finished"
