"""Data sets, models and callbacks of the resume tests."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchmetrics import Metric

from lightkit.data import DataInfo
from lightkit.trainer import Callback


class Drawing(Dataset[Any]):
    """Map-style data that draws from every global generator for each sample."""

    def __init__(self, rows: int = 60) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x, self.targets = torch.randn(rows, 6, generator=generator), torch.arange(rows) % 3

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        noise = random.gauss(0, 0.1) + np.random.normal(0, 0.1) + torch.randn(6) * 0.1
        return (self.x[row] + noise).to(torch.float32), self.targets[row]


class Weighty(Drawing):
    """The same with a weight and a length for each row, the last class rare."""

    def __init__(self, rows: int = 60) -> None:
        super().__init__(rows)
        self.targets[:20] %= 2
        self.weights, self.lengths = torch.arange(rows) % 4, torch.arange(rows) * 7 % 11


class Counting(Dataset[Any]):
    """Writes down every row that is read."""

    draws = False

    def __init__(self, path: str, rows: int = 50) -> None:
        self.path, self.x, self.targets = path, torch.randn(rows, 4), torch.arange(rows) % 2
        self.info = DataInfo("multiclass", (4,), 2, ("a", "b"), fingerprint="counting")  # nothing is read to find out

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{row}\n".encode())
        os.close(file)
        return self.x[row], self.targets[row]


class TwoTargets(Drawing):
    """A class and a number for each sample, by name."""

    def __getitem__(self, row: int) -> Any:
        x, kind = super().__getitem__(row)
        return x, {"kind": int(kind), "size": float(x[0])}


class Begins(Callback):
    """Writes down that training begins: what was read before served to build the run.

    Args:
        path: The file of `Counting`.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def on_fit_start(self, trainer: Any) -> None:
        with open(self.path, "a") as file:
            file.write("-1\n")


class DrawsItself(Drawing):
    """Draws from a generator of its own: a resumed run cannot know where it stood."""

    def __init__(self, rows: int = 60, seed: int | None = 0) -> None:
        super().__init__(rows)
        self.rng = np.random.default_rng(seed)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row] + float(self.rng.normal()), self.targets[row]


class Forgetful(nn.Module):
    """Keeps state that is no buffer."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.head, self.calls = nn.Linear(in_features, num_classes), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return self.head(x) * (1 + self.calls / 100)


class PythonDice(nn.Module):
    """Draws from python's generator, which nobody seeds between two batches."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * (random.random() if self.training else 1.0)


class Nudge(Callback):
    """Changes the weights by something no checkpoint knows."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, trainer: Any) -> None:
        self.steps += 1
        with torch.no_grad():
            next(trainer.model.parameters()).mul_(1 + self.steps / 1000)


class Rates(Callback):
    """Changes the learning rates by something no checkpoint knows."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, trainer: Any) -> None:
        self.steps += 1
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.01 / self.steps


class Explodes(nn.Module):
    """A loss that is NaN now and then, as a function of the batch."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, target)
        return loss * torch.nan if int(target.sum()) % 5 == 0 and torch.is_grad_enabled() else loss


class Overflows(nn.Module):
    """A finite loss whose gradient is none now and then, as a function of the batch."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, target)
        steep = int(target.sum()) % 3 == 0 and torch.is_grad_enabled()
        return loss + (output.sum() * 0.0).sqrt() if steep else loss


class Counts(Callback):
    """Counts steps, with a state."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, trainer: Any) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Spoils(Callback):
    """Makes a weight NaN after a step: after the first of these, after the second once the run has gone back, ..."""

    def __init__(self, at: list[int]) -> None:
        self.at = at

    def on_step(self, trainer: Any) -> None:
        if dict(enumerate(self.at)).get(trainer.state.rollbacks) == trainer.state.step:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(torch.nan)


class ForeignDraws(Callback):
    """Draws from the global generators between steps, another number of times in every process."""

    def on_step(self, trainer: Any) -> None:
        for _ in range(os.getpid() % 7 + 1):
            random.random()
            np.random.random()
            torch.rand(3)


def text_file(path: Path) -> Path:
    """A text that a small language model can be trained on."""
    words = [f"word{(number * 7919) % 53}" for number in range(700)]
    path.write_text(" ".join(words), encoding="utf-8")
    return path


class Listed(Metric):
    """Keeps a plain list, which is no state of a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.seen.append(float((preds.argmax(-1) == target).float().mean()))

    def compute(self) -> Tensor:
        return torch.tensor(sum(self.seen) / max(1, len(self.seen)))

    def reset(self) -> None:
        super().reset()
        self.seen = []


class Cached(Drawing):
    """Keeps what it has drawn."""

    def __init__(self, rows: int = 60) -> None:
        super().__init__(rows)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row not in self.cache:
            self.cache[row] = super().__getitem__(row)
        return self.cache[row]
