"""Tables of a configuration are judged once, and large ones when they are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, load_run, named_files, signatures
from lightkit.config.annotations import UNKNOWN
from lightkit.config.missing import PACKAGES, Failure, check_imports, failing_import, package_of
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
    (project / "mine.py").write_text("from torch import nn\nimport no_such_package\n\n\nclass Net(nn.Module): pass\n")
    (project / "experiments/e.yaml").write_text("# @package _global_\nscheduler:\n  warmup_steps: 4\n")
    done = cli(
        *("train", "experiment=e", "data=csv", "data.dataset.path=/no/t.csv", "data.dataset.target=x"),
        *("optim.lrr=0.1", "model=custom", "model._target_=mine.Net", "scheduler.warmup_epochs=1"),
    )
    assert done.code == 2
    assert "Traceback" not in done.err
    for part in (
        "optim.lrr: torch.optim.AdamW takes no such argument\n    at:       command line: optim.lrr=0.1",
        "data.dataset.path: there is no such file or folder: there is no folder /no\n    at:       command line",
        "mine.Net can't be imported: mine.py:2: there is no module no_such_package\n    at:       command line",
        "scheduler.warmup_epochs: the warm-up is given twice",
        "4 problems found",
    ):
        assert part in done.err
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
        (TABLE | {"path": "."}, ["data.dataset.path: the file has no rows", "empty.csv"]),
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
    check_imports(tree, report)
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


Find = Callable[..., Failure | None]


NET = "\n\ndef Net(): pass\n"


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """`find("import x", {"helper": "..."})`: what fails in the import of that text; others lie beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(text: str, others: Mapping[str, str] = MappingProxyType({})) -> Failure | None:
        for name, content in {"mine": text + NET, **others}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        signatures.clear()
        return failing_import("mine.Net", Trust(roots=(tmp_path,)))

    return run


FAILING = """
'''Mine.''';import torch;import nosuch.part | mine.py:3 | there is no module nosuch
from nosuch import thing | mine.py:1 | there is no module nosuch
from torch.nn import Linear, Modul | mine.py:1 | the module torch.nn has no Modul
import helper | helper.py:2 | there is no module nosuch
from helper import other | helper.py:2 | there is no module nosuch
import torch;;from parts import bad | parts/bad.py:1 | expected ':'
from parts.good import wheel | mine.py:1 | the module parts.good has no wheel
import parts.godo | mine.py:1 | there is no module parts.godo
from . import good | mine.py:1 | the dots lead out of the package
"""


def test_what_fails_is_told_with_its_place(find: Find) -> None:
    others = {"helper": "\nimport nosuch\n", "parts/__init__": "", "parts/bad": "def f()\n", "parts/good": "x = 1\n"}
    for line in FAILING.strip().splitlines():
        text, place, what = line.split(" | ")
        found = find(text.replace(";", "\n"), others)
        assert found is not None
        assert (found.place, found.what) == (place, what)
        assert place in str(found.fix) or "full path" in str(found.fix)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nfrom torch.utils.data import Dataset\nfrom os.path import join\nimport xml.etree.ElementTree",
        "try:\n    import nosuch\nexcept ImportError:\n    nosuch = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nosuch",
        "def f():\n    import nosuch",
        "import sys\nsys.path.append('elsewhere')\nimport nosuch",
        "import helper\nimport nosuch",
        "import pkg\npkg.install()\nimport nosuch",
        "from maker import anything",
        "from hook import anything",
        "import spread.elsewhere",
    ],
)
def test_what_is_not_certain_is_left_to_the_run(find: Find, text: str) -> None:
    others = {
        "helper": "import sys\nsys.path.insert(0, 'elsewhere')\n",
        "pkg": "",
        "maker": "globals()['anything'] = 1\n",
        "hook": "def __getattr__(name): return 1\n",
        "spread/__init__": "__path__.append('elsewhere')\n",
    }
    assert find(text, others) is None


def test_nothing_is_imported_and_nobody_elses_module_is_looked_into(find: Find, tmp_path: Path) -> None:
    assert find("import helper", {"helper": "raise SystemExit('imported')\n"}) is None
    assert not {"mine", "helper"} & {*sys.modules}
    assert find("import nosuch") is not None
    assert failing_import("mine.Net", Trust()) is None
    assert failing_import("mine.Net", Trust(roots=(tmp_path,), excluded=(tmp_path,))) is None
    assert failing_import("mine.Nett", Trust(roots=(tmp_path,))) is None, "which the check of targets tells"


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
