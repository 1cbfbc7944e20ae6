"""Imports of the user's modules that would fail are found by reading them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from lightkit.config import signatures
from lightkit.config.imports import Failure, failing_import
from lightkit.config.trust import Trust

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


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("'''Mine.'''\nimport torch\nimport nosuch.part", "mine.py:3", "there is no module nosuch"),
        ("from nosuch import thing", "mine.py:1", "there is no module nosuch"),
        ("from torch.nn import Linear, Modul", "mine.py:1", "the module torch.nn has no Modul"),
        ("import helper", "helper.py:2", "there is no module nosuch"),
        ("from helper import other", "helper.py:2", "there is no module nosuch"),
        ("import torch\n\nfrom parts import bad", "parts/bad.py:1", "expected ':'"),
        ("from parts.good import wheel", "mine.py:1", "the module parts.good has no wheel"),
        ("import parts.godo", "mine.py:1", "there is no module parts.godo"),
        ("from . import good", "mine.py:1", "the dots lead out of the package"),
    ],
)
def test_what_fails_is_told_with_its_place(find: Find, text: str, place: str, what: str) -> None:
    others = {"helper": "\nimport nosuch\n", "parts/__init__": "", "parts/bad": "def f()\n", "parts/good": "x = 1\n"}
    found = find(text, others)
    assert found is not None
    assert (found.place, found.what) == (place, what)


def test_what_was_meant_is_told(find: Find) -> None:
    found = find("from torch.nn import Modul")
    assert found is not None
    assert found.fix == "did you mean Module? It is to be mended in mine.py:1"
    found = find("import nosuch")
    assert found is not None
    assert found.fix == "install what brings nosuch, or mend mine.py:1"


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
    assert failing_import("mine.Net", Trust(roots=(tmp_path,), outside=(tmp_path,))) is None
    assert failing_import("mine.Nett", Trust(roots=(tmp_path,))) is None, "which the check of targets tells"
