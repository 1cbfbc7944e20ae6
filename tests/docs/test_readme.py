"""README.md, from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage
from tests.docs.pages import ROOT, blocks


@pytest.mark.parametrize(
    "command",
    ["make train", "make test", "new", "train", "config", "plan", "resume", "eval", "predict", "runs", "board"],
)
def test_it_shows_the_command(command: str) -> None:
    shown = [
        line for block in blocks(ROOT / "README.md") if block.language == "bash" for line in block.code.split("\n")
    ]
    assert any(line.removeprefix("lightkit ").startswith(command) for line in shown)


def test_it_runs_all_that_it_shows() -> None:
    assert [block.place for block in blocks(ROOT / "README.md") if block.shown] == []


@pytest.mark.slow
def test_page(check: CheckPage) -> None:
    check("README.md")
