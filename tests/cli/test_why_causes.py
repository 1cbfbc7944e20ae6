"""`lightkit why` names what was planted into the second of two runs, and nothing beside it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.warm import Warm

NET = """
import json, os
from pathlib import Path
from torch import nn
from shifts import shift

class Net(nn.Module):
    def __init__(self, in_features: int, num_classes: int, width: int = 6, dropout: float = 0.1):
        super().__init__()
        self.body = nn.Linear(in_features, width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_classes)
        self.scale = json.loads(Path("settings.json").read_text())["scale"]
        self.bias = float(os.environ.get("NET_BIAS", "0"))

    def forward(self, x):
        return self.head(self.drop(nn.functional.relu(shift(self.body(x) * self.scale + self.bias))))
"""
SHIFTS = """
from shifting import by

def shift(values, factor=1.0):
    return factor * (values + by())
"""
TASK = """
from lightkit.trainer.tasks import Supervised

class Mine(Supervised):
    def step(self, *args, **options):
        return super().step(*args, **options)
"""
NOISY = """
import torch

class Noisy(torch.utils.data.Dataset):
    classes = ["low", "high"]

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((4,), float(index % 2)) + torch.randn(4), index % 2
"""
DRAWING = """
import numpy as np
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self, in_features: int, num_classes: int):
        super().__init__(in_features, num_classes)

    def forward(self, x):
        noise = np.random.default_rng().normal(size=tuple(x.shape))
        return super().forward(x + torch.as_tensor(noise, dtype=x.dtype))
"""
BASE = (
    "trainer.epochs=1",
    "data.batch_size=16",
    "logger.console.style=quiet",
    "device=cpu",
    "device.deterministic=true",
)
TABLE = (
    *("data=csv", "data.dataset.path=table.csv", "data.dataset.target=kind", "model=custom", "optim=adamw"),
    *("model._target_=net.Net", "trainer.task._target_=task.Mine", *BASE),
)
WEIGHTS = ("data=wine", "model.hidden=[]", "finetune.weights.path=start.pt", *BASE)
PICTURES = ("data=digits", "data.split.limit=64", "trainer.epoch_steps=2", *BASE)
OWN = ("data=custom", "data.dataset._target_=noisy.Noisy", "model=mlp", *BASE)
RANDOM = ("data=wine", "model=custom", "model._target_=drawing.Net", *BASE)


def table() -> list[str]:
    draw = random.Random(0)
    lines = ["a,b,c,kind"]
    for row in range(60):
        kind = row % 3
        values = ",".join(f"{draw.gauss(kind, 1.0):.3f}" for _ in range(3))
        lines.append(f"{values},{'rst'[kind]}")
    return lines


Lines = list[str]


def rows(change: Callable[[Lines], Lines]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "table.csv"
        file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")

    return edit


def text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return edit


def one_weight(folder: Path) -> None:
    weights = torch.load(folder / "start.pt")
    weights["head.weight"].view(-1)[3] += 0.5
    torch.save(weights, folder / "start.pt")


def newer_package(folder: Path) -> None:
    shutil.rmtree(folder / "shifting-1.0.dist-info")
    package(folder, "2.0", "0.7")


def package(folder: Path, version: str, default: str) -> None:
    info = folder / f"shifting-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shifting\nVersion: {version}\n")
    (folder / "shifting.py").write_text(f"def by():\n    return {default}\n")


@dataclass
class Case:
    """A cause: what `why` is to say (kind, and the beginning of the line), and what the second run has otherwise."""

    name: str
    kind: str
    says: str
    words: tuple[str, ...] = ()
    edit: Callable[[Path], None] = lambda _: None
    variables: Mapping[str, str] = field(default_factory=dict)
    base: tuple[str, ...] = TABLE
    also: str = ""
    """Kind of further lines that are as true, such as rows that a seed has moved to another split."""


def keyed(name: str, words: str, values: str, **more: Any) -> Case:
    return Case(name, "configuration", f"{words.partition('=')[0].lstrip('+')}: {values}", (words,), **more)


NOISE = "data.augment=[{_target_:lightkit.data.transforms.GaussianNoise,deviation:0.5}]"
CONTENT = "the content of the data set: "
CASES = [
    Case("one weight", "weights", "head.weight: ", edit=one_weight, base=WEIGHTS),
    Case("an unseeded draw", "", "nothing else is known to differ", base=RANDOM),
    Case(
        "a row of data",
        "data",
        f"{CONTENT}1 row changed (6)",
        edit=rows(lambda lines: [*lines[:7], "9,9,9,r", *lines[8:]]),
    ),
    Case("a file of own code", "code", "names settings.json: ", edit=text("settings.json", "1.0", "2.0")),
    Case("a variable of own code", "code", "names NET_BIAS: 0.0 and 0.5", variables={"NET_BIAS": "0.5"}),
    keyed("seed", "seed=1", "0 and 1"),
    keyed("seed of the split", "data.split.seed=3", "0 and 3", also="data"),
    keyed("augmentation", NOISE, "[] and ", base=PICTURES),
    keyed("worker count", "data.num_workers=1", "0 and 1", base=OWN),
    Case("a default of a package", "versions", "shifting: 1.0 and 2.0", edit=newer_package, also="code"),
    Case("a default of own code", "code", "shifts.py", edit=text("shifts.py", "1.0", "0.7")),
    Case("a row more", "data", f"{CONTENT}0 rows removed, 1 row added", edit=rows(lambda lines: [*lines, "9,9,9,r"])),
    Case(
        "a row less", "data", f"{CONTENT}1 row removed, 0 rows added", edit=rows(lambda lines: [*lines[:7], *lines[8:]])
    ),
    Case(
        "order", "data", f"{CONTENT}the same rows in another order", edit=rows(lambda lines: [lines[0], *lines[:0:-1]])
    ),
    Case(
        "a label",
        "data",
        f"{CONTENT}1 row changed (6)",
        edit=rows(lambda lines: [*lines[:7], f"{lines[7][:-1]}s", *lines[8:]]),
    ),
    Case(
        "classes", "data", "classes: ", edit=rows(lambda lines: [one.replace("r", "z") for one in lines]), also="data"
    ),
    Case("a changed module", "code", "net.py", edit=text("net.py", "functional.relu", "functional.gelu")),
    Case("an edited task", "code", "task.py", edit=text("task.py", "return super", "self.seen = 1; return super")),
    keyed("precision", "device.precision=bf16", "fp32 and bf16", also="machine"),
    keyed("loss", "loss.label_smoothing=0.1", "0.0 and 0.1"),
    keyed("learning rate", "optim.lr=0.01", "0.001 and 0.01"),
    keyed("batch size", "data.batch_size=8", "16 and 8"),
    keyed("accumulated batches", "trainer.accumulate=2", "1 and 2"),
    keyed("a default of the optimizer", "optim.eps=0.1", "1e-08 and 0.1"),
    keyed("deterministic algorithms", "device.deterministic=false", "true and false", also="machine"),
    keyed("dropout", "+model.dropout=0.5", "(none) and 0.5"),
    keyed("statistics of normalization", "data.normalize_rows=20", "null and 20"),
    Case("threads", "machine", "variable OMP_NUM_THREADS: 1 and 2", variables={"OMP_NUM_THREADS": "2"}),
]


class Home:
    """A project, and its runs so far."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self.folder, self._warm, self._runs = folder, warm, dict[tuple[str, ...], str]()
        (folder / "conf").mkdir(parents=True)
        self.lay_out()

    def lay_out(self) -> None:
        """Write all files as they are in first runs."""
        for info in self.folder.glob("*.dist-info"):
            shutil.rmtree(info)
        package(self.folder, "1.0", "0.5")
        files = {"net": NET, "shifts": SHIFTS, "task": TASK, "noisy": NOISY, "drawing": DRAWING}
        for name, content in files.items():
            (self.folder / f"{name}.py").write_text(content)
        (self.folder / "settings.json").write_text('{"scale": 1.0}\n')
        (self.folder / "table.csv").write_text("\n".join(table()) + "\n")
        torch.manual_seed(0)
        weights = {"head.weight": torch.randn(3, 13), "head.bias": torch.zeros(3)}
        torch.save(weights, self.folder / "start.pt")

    def run(self, *args: str, **variables: str) -> str:
        code, out, err = self._warm.run(args, self.folder, {**os.environ, "NET_BIAS": "0.0", **variables})
        assert code == 0, out + err
        return out

    def first(self, words: tuple[str, ...]) -> str:
        """The name of the first run of such words, trained once."""
        if words not in self._runs:
            self._runs[words] = f"first{len(self._runs)}"
            self.run("train", *words, f"name={self._runs[words]}")
        return self._runs[words]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Home:
    return Home(tmp_path_factory.mktemp("causes") / "project", warm)


@pytest.mark.thorough(first=2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_planted_is_named_and_nothing_beside_it(home: Home, case: Case) -> None:
    first, second = home.first(case.base), case.name.replace(" ", "-")
    case.edit(home.folder)
    try:
        home.run("train", *case.base, *case.words, f"name={second}", **case.variables)
    finally:
        home.lay_out()
    found = [(cause["kind"], cause["what"]) for cause in json.loads(home.run("why", first, second, "--json"))["causes"]]
    assert case.says in home.run("why", first, second)
    named = [one for one in found if one[0] == case.kind and one[1].startswith(case.says)]
    assert len(named) == bool(case.kind)
    assert {kind for kind, what in found if (kind, what) not in named} <= {case.also}
