"""Tables of a configuration are judged once, and large ones when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import compose, named_files

CSV = ("data=csv", "data.dataset.path=t.csv", "data.dataset.target=kind")


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
