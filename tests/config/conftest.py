"""A small user project that is complete by itself: these tests don't depend on the shipped options of other parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, compose, signatures
from lightkit.config.project import make_importable

FILES = {
    "conf/config.yaml": """\
# A run of the toy project.
defaults:
  - metrics: acc
  - loss: ce
  - model: net
  - optim: sgd
  - scheduler: flat
  - device: auto
  - finetune: none
  - ensemble: none
  - trainer: default
  - checkpoint: default
  - logger: default
  - data: toy
  - _self_
  - optional experiment: null

name: toy
seed: 0
extra: {}
""",
    "conf/data/toy.yaml": """\
# Toy data.
dataset:
  _target_: toy.Data
  rows: 100
split:
  by: random
batch_size: 8
augment:
  - _target_: toy.Noise
    scale: 0.1
""",
    "conf/model/net.yaml": "# A toy network.\n_target_: toy.Net\nhidden: [4, 4]\nact: relu\n",
    "conf/model/wide.yaml": "# A wide one.\ndefaults:\n  - net\nhidden: [64]\n",
    "conf/model/any.yaml": "# Any class.\n_target_: ???\n",
    "conf/loss/ce.yaml": "# Cross entropy.\n_target_: torch.nn.CrossEntropyLoss\n",
    "conf/loss/mse.yaml": "# Squared error.\n_target_: torch.nn.MSELoss\n",
    "conf/optim/sgd.yaml": "# SGD.\n_target_: torch.optim.SGD\nlr: 0.1\nmomentum: 0.9\n",
    "conf/optim/adam.yaml": "# Adam.\n_target_: torch.optim.Adam\nlr: 0.001\n",
    "conf/scheduler/flat.yaml": "# Flat.\n_target_: toy.Schedule\n",
    "conf/metrics/acc.yaml": """\
# Accuracy.
monitor: val/accuracy
mode: max
val:
  accuracy:
    _target_: torchmetrics.classification.MulticlassAccuracy
""",
    "toy.py": """\
from __future__ import annotations

from typing import Literal, Optional

import lightkit.optim
import lightkit.trainer
from torch import nn


class Data:
    def __init__(self, rows: int, path: Optional[str] = None):
        self.rows, self.path = rows, path


class Noise:
    def __init__(self, scale: float = 1.0):
        if scale > 100:
            raise ValueError("too loud")
        self.scale = scale


class Net(nn.Module):
    def __init__(self, num_classes: int, hidden: list[int], act: Literal["relu", "gelu"] = "relu", body=None):
        super().__init__()
        self.num_classes, self.hidden, self.act, self.body = num_classes, hidden, act, body


class Small(nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()


class Hook(lightkit.trainer.Callback):
    pass


class Wrapped(Net):
    def __init__(self, *, depth: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth


class Schedule(lightkit.optim.Schedule):
    def __init__(self, optimizer, total_steps: int, warmup: float = 0.0):
        self.optimizer, self.total_steps, self.warmup = optimizer, total_steps, warmup


class Task(lightkit.trainer.Task):
    def __init__(self, weight: float = 1.0):
        self.weight = weight

    @classmethod
    def make(cls, weight: float):
        return cls(weight)


def anything(**options):
    return options
""",
}

Write = Callable[[str, str], Path]


@pytest.fixture
def toy(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The toy project as working directory; nothing of it stays importable."""
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    make_importable(project)
    yield project
    for name in [name for name in sys.modules if name.partition(".")[0] in ("toy", "experiments")]:
        del sys.modules[name]
    signatures.clear()


@pytest.fixture
def write(toy: Path) -> Write:
    """`write("experiments/a.yaml", text)` below the toy project."""

    def put(name: str, text: str) -> Path:
        path = toy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return put


@pytest.fixture
def report(toy: Path) -> Callable[..., str]:
    """`report("optim.lrr=1")`: the text of everything that is wrong."""

    def run(*overrides: str, **options: str) -> str:
        with pytest.raises(UserErrors) as caught:
            compose(list(overrides), **options)  # type: ignore[arg-type]
        return str(caught.value)

    return run


@pytest.fixture
def composed(toy: Path) -> Callable[..., Composed]:
    """`composed("optim=adam")`: a checked configuration of the toy project."""

    def run(*overrides: str) -> Composed:
        return compose(list(overrides))

    return run
