"""Faults of data planted in a project, as a user would have them, and what the doctor says of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightkit.config import compose
from lightkit.doctor.checks import CHECKS, find_check
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import examined
from tests.conftest import Outcome
from tests.doctor.data.test_text_overlap import written

OF_DATA = ("labels", "splits", "order", "features", "leaks", "scale", "augmentation")
TABLE = ["data=csv", "data.dataset.path=rows.csv", "data.dataset.target=y", "loss=cross_entropy", "metrics=multiclass"]
MODEL = ["model=mlp", "model.hidden=[16]"]
SHIFT = "{_target_: lightkit.data.transforms.RandomShift, pixels: 8}"
CODE = '''
import torch
from lightkit.data.tables import digits, wine
from lightkit.trainer.tasks import Supervised


class Cheating(Supervised):
    """Hands the target to the network with the input."""

    def step(self, model, batch, criterion):
        x, y = batch
        return super().step(model, (x.index_copy(1, torch.tensor([0]), y[:, None].float()), y), criterion)


class Noisy:
    """Adds noise to every sample, whatever it is asked for."""

    draws = True

    def __init__(self):
        self.base = wine()
        self.targets = self.base.y

    def __len__(self):
        return len(self.base)

    def __getitem__(self, row):
        x, y = self.base[row]
        return x + torch.randn(len(x)), int(y)


class FromOne(Noisy):
    """Counts classes from 1."""

    def __init__(self):
        super().__init__()
        self.targets = self.base.y + 1

    def __getitem__(self, row):
        x, y = self.base[row]
        return x, int(y) + 1


def mispaired():
    """Digits whose labels have come off by one row."""
    data = digits()
    data.y = data.y[torch.randperm(len(data), generator=torch.Generator().manual_seed(0))]
    return data
'''


def rows(count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """A healthy table: the class follows from three of four features, with noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(count, 4))
    return x, (x[:, :3].sum(1) + random.normal(size=count) > 0).astype(int)


def write(x: np.ndarray, y: np.ndarray, names: str = "a,b,c,d") -> list[str]:
    lines = [",".join(f"{value:.9g}" for value in row) + f",{label}" for row, label in zip(x, y)]
    Path("rows.csv").write_text("\n".join([f"{names},y", *lines]) + "\n")
    return [*TABLE, *MODEL]


def with_column(column: np.ndarray, name: str, y: np.ndarray | None = None) -> list[str]:
    x, own = rows(len(column))
    return write(np.column_stack([x, column]), own if y is None else y, f"a,b,c,d,{name}")


def repeated() -> list[str]:
    x, y = rows()
    return write(np.concatenate([x, x[:120]]), np.concatenate([y, y[:120]]))


def rounded() -> list[str]:
    x, y = rows()
    near = x[:120] + 1e-4 * np.random.default_rng(1).normal(size=(120, 4))
    return write(np.concatenate([x, near]), np.concatenate([y, y[:120]]))


def patients() -> list[str]:
    return with_column(np.arange(300) // 6, "patient_id")


def contradictions() -> list[str]:
    x, y = rows()
    return write(np.concatenate([x, x[:60]]), np.concatenate([y, 1 - y[:60]]))


def rare() -> list[str]:
    x, _ = rows(1000)
    return write(x, (np.arange(1000) % 40 == 0).astype(int))


def sentinels() -> list[str]:
    x, y = rows()
    x[::12, 2] = -999
    return write(x, y)


def constant() -> list[str]:
    return with_column(np.full(300, 3.0), "unit")


def leak() -> list[str]:
    x, y = rows()
    return with_column(y * 2.5 + 0.01 * x[:, 0], "outcome_code")


def dated() -> list[str]:
    x, _ = rows()
    order = np.argsort(x[:, :3].sum(1))
    days = np.empty(300)
    days[order] = 1.6e9 + 86400.0 * np.arange(300)
    return with_column(days, "recorded")


def unlike_units() -> list[str]:
    x, y = rows()
    return [*write(x * [1e-3, 1.0, 5.0, 1.0], y), "data.normalize=none"]


def sorted_rows() -> list[str]:
    x, y = rows()
    order = np.argsort(y, kind="stable")
    return [*write(x[order], y[order]), "data.split.by=ordered"]


def twice() -> list[str]:
    Path("texts").mkdir()
    files = written(20)
    for name, text in [*files.items(), *((f"copy_{name}", text) for name, text in files.items())]:
        (Path("texts") / name).write_text(text)
    return [
        "data=text",
        "data.dataset.path=texts",
        "data.dataset.pattern=*.txt",
        "data.dataset.context_length=64",
        "model=lstm_lm",
    ]


def from_one() -> list[str]:
    return ["data=custom", "data.dataset._target_=my_data.FromOne", "loss=cross_entropy", "metrics=multiclass", *MODEL]


def noisy() -> list[str]:
    return ["data=custom", "data.dataset._target_=my_data.Noisy", "loss=cross_entropy", "metrics=multiclass", *MODEL]


def shifted_away() -> list[str]:
    return ["data=digits", f"data.augment=[{SHIFT}]", *MODEL]


FAULTS: dict[str, tuple[Callable[[], list[str]], str]] = {
    "rows on both sides of the split": (repeated, "overlap of splits"),
    "almost equal rows on both sides": (rounded, "near duplicates"),
    "patients on both sides": (patients, "groups"),
    "a text under two names": (twice, "overlap of splits"),
    "equal inputs with two labels": (contradictions, "conflicting labels"),
    "a rare class": (rare, "class balance"),
    "labels from one": (from_one, "labels"),
    "sorted rows, cut in order": (sorted_rows, "row order"),
    "-999 for missing": (sentinels, "missing values"),
    "a constant column": (constant, "constant features"),
    "a column that knows the answer": (leak, "leaking features"),
    "a date that knows the answer": (dated, "leaking features"),
    "unlike units": (unlike_units, "input scale"),
    "augmentation out of the picture": (shifted_away, "augmentation"),
    "augmented validation": (noisy, "evaluation inputs"),
}


def found_in(overrides: list[str], *names: str) -> list[Finding]:
    """What checks of these names find in the run that the overrides ask for."""
    with examined(compose(overrides).cfg, 60) as patient:
        return [finding for name, place in CHECKS if name in names for finding in find_check(place)(patient)]


@pytest.fixture
def code(project: Path) -> None:
    (project / "my_data.py").write_text(CODE)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    plant, check = FAULTS[fault]
    bad = [finding for finding in found_in(plant(), *OF_DATA) if finding.is_bad]
    assert check in {finding.check for finding in bad}
    assert all(finding.measured and finding.why and finding.key and finding.fix for finding in bad)


@pytest.mark.usefixtures("code")
def test_without_a_fault_nothing_is_found() -> None:
    found = found_in(write(*rows()), *OF_DATA)
    assert not [finding for finding in found if finding.is_bad]


@pytest.mark.usefixtures("code")
def test_labels_of_other_rows_show_in_the_baselines() -> None:
    custom = ["data=custom", "data.dataset._target_=my_data.mispaired", "loss=cross_entropy", "metrics=multiclass"]
    found = found_in([*custom, *MODEL], "baselines")
    assert (found[0].check, found[0].status) == ("baselines", "warning")


@pytest.mark.usefixtures("code")
def test_a_task_that_hands_targets_to_the_network_is_found() -> None:
    found = found_in(["data=wine", "trainer.task._target_=my_data.Cheating", *MODEL], "loss", "baselines")
    assert [(finding.check, finding.status) for finding in found] == [
        ("shuffled labels", "error"),
        ("baselines", "skipped"),
    ]


@pytest.mark.thorough
@pytest.mark.usefixtures("code")
def test_the_command_tells_of_a_fault_and_ends_with_its_status(cli: Callable[..., Outcome]) -> None:
    overrides = repeated()
    done = cli("doctor", *overrides, "--json")
    found = json.loads(done.out)["findings"]
    assert done.code == 1
    assert [each["split"] for each in (finding["numbers"] for finding in found if finding["status"] == "error")]
    assert cli("doctor", *write(*rows())).code == 0


@pytest.mark.usefixtures("code")
def test_nothing_is_left_behind(project: Path) -> None:
    overrides = rounded()
    before = sorted(project.rglob("*"))
    found_in(overrides, *OF_DATA)
    assert sorted(path for path in project.rglob("*") if "__pycache__" not in path.parts) == before
