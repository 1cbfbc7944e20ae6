"""The pages about how lightkit works, each from top to bottom, and that the tree they show is the one there is."""

from __future__ import annotations

import re

import pytest

from tests.docs.conftest import CheckPage
from tests.docs.pages import ROOT, blocks

ARCHITECTURE = ROOT / "docs" / "concepts" / "architecture.md"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/concepts/guarantees.md"])
def test_page(page: str, check: CheckPage) -> None:
    check(page)


def test_the_tree_is_true() -> None:
    tree = next(block.code for block in blocks(ARCHITECTURE) if block.code.startswith("pyproject.toml"))
    names = [line.split()[0] for line in tree.splitlines()]

    assert [name for name in names if name != "outputs/" and not (ROOT / name).exists()] == []


def test_every_room_and_every_file_of_the_commands_is_told_of() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    told = {*re.findall(r"`(\w+/|\w+\.py)`", text)}
    package = ROOT / "lightkit"
    rooms = {f"{file.parent.name}/" for file in package.glob("*/__init__.py")}
    commands = {file.name for file in (package / "cli").glob("*.py")}

    assert rooms - told == set()
    assert commands - told == {"__init__.py"}
