from __future__ import annotations

import sys

import pytest

from lightkit.cli.terminal import SHORTEST, fitting, table, width

TITLES = ("name", "best", "folder")
ROWS = [
    ["a_very_long_name_of_a_run", "0.5", "outputs/runs/2026-01-31/12-00-00-a_very_long_name_of_a_run"],
    ["b", "1", "c"],
]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_table_fits_the_terminal(columns: int) -> None:
    text = table(TITLES, fitting(TITLES, ROWS, columns=[0, 2], width=columns))
    assert max(map(len, text.splitlines())) <= columns
    assert "…" in text
    assert text.splitlines()[1].endswith("of_a_run")


def test_nothing_is_cut_where_there_is_room_or_no_terminal() -> None:
    assert fitting(TITLES, ROWS, columns=[0, 2], width=200) == ROWS
    assert fitting(TITLES, ROWS, columns=[0, 2], width=None) == ROWS
    assert fitting(TITLES, [], columns=[0, 2], width=10) == []


def test_a_tiny_terminal_still_shows_something() -> None:
    cut = fitting(TITLES, ROWS, columns=[0, 2], width=5)
    assert [len(cut[0][0]), len(cut[0][2])] == [SHORTEST, SHORTEST]
    assert cut[0][1] == "0.5"


def test_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "47")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert width() == 47
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert width() is None
