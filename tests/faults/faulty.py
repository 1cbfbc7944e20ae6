"""Parts that do something bad at a chosen moment; copied into the project of each test."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from lightkit.data import waiting
from lightkit.trainer import Callback, StepOutput, Supervised


def act(what: str) -> None:
    """`TERM`, `group:INT`, `parent:TERM` send signals; `hold` waits for somebody else to; `exit:7`, `memory`, …"""
    kind, _, detail = what.rpartition(":")
    if what == "hold":
        Path("reached").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    elif kind == "exit":
        os._exit(int(detail))
    elif what == "memory":
        raise MemoryError
    elif what == "allocate":
        torch.empty(2**50, dtype=torch.uint8)
    elif what == "cuda":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore lines")
    elif kind == "fill":
        _fill(Path(detail))
    elif kind == "full":
        _fill(Path(detail))
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        for name in detail.split("+"):
            number = getattr(signal, f"SIG{name}")
            target = {"": os.getpid, "parent": os.getppid, "group": lambda: -os.getpgid(0)}[kind]()
            os.kill(target, number)


def _fill(folder: Path) -> None:
    """Use up the disk that a folder is on, once the first checkpoint, written in the background, is there."""
    while not (folder / "run" / "checkpoints" / "manifest.json").exists():
        time.sleep(0.01)
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (65536, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


class At(Callback):
    """Does something after a step."""

    def __init__(self, step: int, what: str) -> None:
        self.number, self.what = step, what

    def on_step(self, trainer: Any) -> None:
        if trainer.state.step == self.number and not Path("fine").exists():
            act(self.what)


class Net(nn.Module):
    """Does something in a forward pass: the n-th of validations and tests (`phase="eval"`), or of training."""

    def __init__(
        self, in_features: int, num_classes: int, what: str = "", number: int = 0, phase: str = "eval", times: int = 1
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, num_classes)
        self.what, self.phase, self.seen = what, phase, 0
        self.when = range(number, number + times)

    def __deepcopy__(self, memo: dict[int, Any]) -> Net:
        """A copy that does nothing of the kind: metrics are tried on one before the first step."""
        other = type(self).__new__(type(self))
        other.__dict__ = {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        other.when = range(0)
        return other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training == (self.phase == "train"):
            self.seen += 1
            if self.seen in self.when and not Path("fine").exists():
                if self.what == "spoil":
                    return self.head(self.layers(x) * float("nan"))
                act(self.what)
        return self.head(self.layers(x))


class Samples(Dataset):
    """Ninety samples read one by one; one of them does something, in a worker process, or `here` in the main one."""

    draws = False

    def __init__(self, what: str = "", row: int = 40, here: bool = False, patience: float = 60.0) -> None:
        self.what, self.row, self.here = what, row, here
        waiting.FIRST_SECONDS = patience
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(90, 5, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        if row == self.row and self.what and self.here == (get_worker_info() is None) and not Path("fine").exists():
            if self.what == "spoil":
                return self.x[row] * float("nan"), self.y[row]
            act(self.what)
        return self.x[row], self.y[row]


def killing(num_classes: int) -> Any:
    """A metric; while it is built, all worker processes are killed."""
    from torchmetrics.classification import MulticlassAccuracy

    for worker in multiprocessing.active_children():
        os.kill(worker.pid or 0, signal.SIGKILL)
        while " Z " not in Path(f"/proc/{worker.pid}/stat").read_text():  # not to be waited for: SIGCHLD is to tell
            time.sleep(0.01)
    return MulticlassAccuracy(num_classes)


class Spoil:
    """An augmentation that makes one number of each batch from position `first` on NaN or infinite."""

    def __init__(self, first: int, value: float = float("nan"), last: int = 10**9) -> None:
        self.first, self.value, self.last = first, value, last

    def __call__(self, x: torch.Tensor, random: Any) -> torch.Tensor:
        if self.first <= int(random.positions[0]) <= self.last and not Path("fine").exists():
            x = x.clone()
            x[0, 0] = self.value
        return x


class BadGradient(Supervised):
    """A finite loss whose gradient is not, at one step of training."""

    def __init__(self, number: int) -> None:
        self.number, self.seen = number, 0

    def step(self, model: nn.Module, batch: Any, criterion: Any) -> StepOutput:
        step = super().step(model, batch, criterion)
        self.seen += model.training
        if model.training and self.seen == self.number:
            zero = (model.head.weight * 0).sum()
            return StepOutput(step.loss + zero.abs().sqrt(), step.preds, step.target)
        return step
