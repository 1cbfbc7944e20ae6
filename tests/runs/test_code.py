"""What a run keeps of the user's modules, and of what these name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from lightkit.runs.code import named_by_code, own_modules


def test_what_modules_name_is_kept_and_one_whose_file_is_gone_ends_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setenv("OWN_DEPTH", "3")
    monkeypatch.setenv("OWN_TOKEN", "a-secret-that-nobody-sees")
    (project / "table.csv").write_text("a,b")
    (project / "named_here.py").write_text("NAMES = ['OWN_DEPTH', 'OWN_TOKEN', 'table.csv', '/dev/zero', '.', 'none']")
    (project / "gone_soon.py").write_text("NAME = 'OWN_DEPTH'")
    for name in ("named_here", "gone_soon"):
        importlib.import_module(name)
    (project / "gone_soon.py").unlink()
    found = named_by_code()
    assert found["OWN_DEPTH"] == "3"
    assert found["table.csv"].startswith("checksum ")
    assert "secret" not in str(found)
    assert "OWN_TOKEN" in found
    assert not {"/dev/zero", ".", "none"} & {*found}
    assert "named_here" in own_modules()


def test_what_cannot_be_compared_among_the_modules_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

    for _ in range(2):
        monkeypatch.setitem(sys.modules, "odd", Odd())  # type: ignore[arg-type]
        assert "odd" not in own_modules()
