"""Tables of a configuration are judged once, and large ones when they are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, load_run, named_files, signatures
from lightkit.config.annotations import UNKNOWN
from lightkit.config.missing import PACKAGES, package_of
from lightkit.config.named_files import check_named_files
from lightkit.config.origins import Sources
from lightkit.config.policy import Trust
from lightkit.config.tree import Report
from tests.conftest import Outcome


def said(*overrides: str) -> str:
    with pytest.raises(UserErrors) as raised:
        compose(overrides)
    return str(raised.value)


MEANT = {
    "model._target_=segmentation_models_pytorch.Unet": "fix:      pip install segmentation-models-pytorch\n",
    "model._target_=cv2.dnn.Net": "cv2.dnn.Net needs the package cv2, which is not installed",
    "model._target_=zebra_of_mine.Net": "pip install PACKAGE",
    "model._target_=Giraffe": "write the full path: package.module.Name",
    "model._target_=Zebra": "did you mean parts.nets.Zebra?",
    "optim._target_=SGD": "did you mean torch.optim.SGD?",
    "model._target_=MLP": "did you mean lightkit.models.MLP?",
    "metrics.val.f1._target_=F1Score": "did you mean torchmetrics.F1Score?",
}


def test_what_may_be_meant_by_a_target_that_is_not_there(project: Path) -> None:
    for folder in ("conf", "parts", "outputs"):
        (project / folder).mkdir(exist_ok=True)
    (project / "parts" / "nets.py").write_text("from torch import nn\n\n\nclass Zebra(nn.Module):\n    pass\n")
    (project / "outputs" / "copy.py").write_text("class Zebra:\n    pass\n")
    for typed, part in MEANT.items():
        text = said(typed)
        assert part in text
        assert "copy" not in text
    assert (package_of("sklearn"), package_of("PIL"), package_of("yaml")) == ("scikit-learn", "pillow", "pyyaml")
    assert package_of("timm") == "'lightkit[vision]'"
    assert not [name for name, package in PACKAGES.items() if " " in name + package]


CSV = ("data=csv", "data.dataset.path=t.csv", "data.dataset.target=kind")


Wrong = Callable[..., str]


@pytest.fixture
def wrong(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wrong]:
    """`wrong("data=csv")`: the text of everything that is wrong, in a project with a table, texts and pictures."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (project / "t.csv").write_text("width;größe;kind\n1;2;a\n2;3;b\n", encoding="latin-1")
    (project / "test.csv").write_text("width;kind\n1;a\n")
    (project / "empty.csv").touch()
    (project / "outputs/texts").mkdir(parents=True)

    def run(*overrides: str) -> str:
        with pytest.raises(UserErrors) as caught:
            compose(list(overrides))
        return str(caught.value)

    yield run
    signatures.clear()


def test_everything_is_told_at_once_and_nothing_is_left(cli: Callable[..., Outcome], project: Path) -> None:
    (project / "experiments/e.yaml").write_text("# @package _global_\nscheduler:\n  warmup_steps: 4\n")
    done = cli(
        *("train", "experiment=e", "data=csv", "data.dataset.path=/no/t.csv", "data.dataset.target=x"),
        *("optim.lrr=0.1", "scheduler.warmup_epochs=1"),
    )
    assert (done.code, "Traceback" in done.err) == (2, False)
    for part in (
        "optim.lrr: torch.optim.AdamW takes no such argument\n    at:       command line: optim.lrr=0.1",
        "data.dataset.path: there is no such file or folder: there is no folder /no\n    at:       command line",
        "scheduler.warmup_epochs: the warm-up is given twice",
        "3 problems found",
    ):
        assert part in done.err
    assert not (project / "outputs").exists()


def test_an_import_that_fails_is_told_with_its_place_before_anything_is_written(
    cli: Callable[..., Outcome], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in {
        "helper": "\nimport nosuch\n",
        "known": "import cv2\n",
        "other": "from json import lods\n",
    }.items():
        (project / f"{name}.py").write_text(text)
        (project / f"of_{name}.py").write_text(f"import {name}\nfrom torch import nn\n\n\nclass Net(nn.Module): pass\n")
    for name, said in {
        "helper": "of_helper.Net can't be imported: helper.py:2: there is no module nosuch",
        "known": "fix:      pip install opencv-python, or mend known.py:1",
        "other": "of_other.Net can't be imported: other.py:1: cannot import name 'lods' from 'json'",
    }.items():
        done = cli("train", "data=wine", "model=custom", f"model._target_=of_{name}.Net")
        assert (done.code, said in done.err, "Traceback" in done.err) == (2, True, False), done.err
    assert not (project / "outputs").exists()


def test_columns_are_read_with_delimiter_and_encoding(wrong: Wrong) -> None:
    options = ("data.dataset.delimiter=';'", "data.dataset.encoding=latin-1")
    text = wrong(
        *CSV[:2],
        *options,
        "data.dataset.target=[kind,sort]",
        "data.dataset.features=[width,'größe',hight]",
        "data.dataset.categorical=[colour]",
        "data.dataset.split_column=part",
        "data.dataset.test_path=test.csv",
        "data.dataset.val_path=val.csv",
    )
    for part in (
        "data.dataset.target: t.csv has no such column",
        "received: 'sort'\n    choices:  width, größe, kind\n",
        "data.dataset.features: t.csv has no such column",
        "data.dataset.categorical: t.csv has no such column",
        "data.dataset.split_column: t.csv has no such column",
        "data.dataset.val_path: there is no such file or folder",
        "data.dataset.test_path: test.csv has no such column",
        "received: 'größe'",
    ):
        assert part in text
    assert "7 problems found" in text
    assert compose([*CSV, *options]).cfg.data.dataset.target == "kind"


TABLE, PICTURES, TEXT = (
    {"_target_": f"lightkit.data.{name}", "target": "kind"}
    for name in ("csv_file.csv", "images.ImageFolder", "text.Text")
)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (TABLE | {"path": "t.csv"}, ["data.dataset.path: the file is not written in utf-8", "encoding=cp1252"]),
        (TABLE | {"path": "t.csv", "encoding": "latin-1"}, ["data.dataset.delimiter: t.csv has one column"]),
        (TABLE | {"path": "empty.csv"}, ["data.dataset.path: the file has no rows"]),
        (TABLE | {"path": "."}, ["data.dataset.path: a folder, not a file", "empty.csv"]),
        (TABLE | {"path": " "}, ["data.dataset.path: an empty path"]),
        (TABLE | {"path": "empty.cvs"}, ["data.dataset.path: there is no such file or folder", "nearest: empty.csv"]),
        (TABLE | {"path": "~/no-such-table.csv"}, ["data.dataset.path: there is no such file or folder"]),
        (PICTURES | {"root": "pics"}, ["data.dataset.root: there is no such file or folder"]),
        (PICTURES | {"root": "t.csv"}, ["data.dataset.root: a file, not a folder"]),
        (TEXT | {"path": "tests.txt"}, ["data.dataset.path: there is no such file or folder"]),
        (TEXT | {"path": "texts"}, ["fix:      data.dataset.path=", "outputs/texts"]),
    ],
)
@pytest.mark.usefixtures("wrong")
def test_data(dataset: dict[str, str], said: list[str]) -> None:
    text = "\n".join(map(str, found({"data": {"dataset": dataset}})))
    for part in said:
        assert part in text


@pytest.mark.parametrize(
    "dataset",
    [
        TABLE | {"path": "pipe.csv", "target": "kind"},
        TABLE | {"path": UNKNOWN, "target": "kind"},
        TABLE | {"path": "test.csv", "target": UNKNOWN, "val_path": None, "delimiter": 3},
        TEXT | {"path": None},
        {"_target_": "mine.Data", "path": "nowhere"},
    ],
)
@pytest.mark.usefixtures("wrong")
def test_what_cannot_be_told_before_the_run(project: Path, dataset: dict[str, Any]) -> None:
    os.mkfifo(project / "pipe.csv")
    assert found({"data": {"dataset": dataset}}) == []


def found(tree: dict[str, Any]) -> list[UserError]:
    report = Report(Sources())
    report.trust = Trust()
    check_named_files(tree, report)
    return report.errors


def test_a_new_run_from_an_earlier_one_needs_its_files_and_an_old_one_is_still_read(project: Path) -> None:
    from lightkit.config.saved import save

    (project / "t.csv").write_text("width,kind\n1,a\n2,b\n")
    (project / "run").mkdir()
    save(compose(list(CSV)).cfg, project / "run")
    (project / "t.csv").unlink()
    assert load_run(project / "run").cfg.data.dataset.path == "t.csv"
    with pytest.raises(UserErrors, match=r"data\.dataset\.path: there is no such file[\s\S]*run/config\.yaml:\d+"):
        load_run(project / "run", new=True)


def test_cells_are_judged_anew_when_the_file_changes(project: Path) -> None:
    (project / "t.csv").write_text("width,kind\n1,a\nx,b\n")
    for _ in range(2):
        with pytest.raises(UserErrors, match=r"data\.dataset\.features: t\.csv, line 3: column 'width' holds text"):
            compose(list(CSV))
    (project / "t.csv").write_text("width,kind\n1,a\n22,b\n")
    assert compose(list(CSV)).cfg.data.dataset.target == "kind"


def test_a_large_table_is_judged_when_it_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "_LARGE", 4)
    (project / "t.csv").write_text("width,kind\n1,a\nx,b\n")
    assert compose(list(CSV)).cfg.data.dataset.target == "kind"
