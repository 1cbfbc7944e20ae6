"""The pages of the manual that are written from the source are up to date."""

from __future__ import annotations

import re

import pytest

from lightkit.cli.arguments import COMMANDS, help_of
from lightkit.cli.reference import GROUPS, PAGES
from lightkit.config.describe import describe_group
from lightkit.config.loader import make_loader
from lightkit.config.project import shipped_conf, shipped_docs


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_source_says(name: str) -> None:
    there = (shipped_docs() / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert there == PAGES[name](), "run `make conf`"


def test_the_options_are_those_of_every_group() -> None:
    text = PAGES["options"]()
    loader = make_loader(project=shipped_conf().parent)
    assert {*GROUPS} == {group for group in loader.groups() if loader.options(group)} - {"experiment", "hydra"}
    keys = [row.key for group in ("", *GROUPS) for row in describe_group(group)]
    assert [key for key in keys if f"\n| `{key}` |" not in text] == []


def test_every_table_has_as_many_cells_in_each_row() -> None:
    rows = re.findall(r"^\|.*\|$", PAGES["options"](), re.M)
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {5, 6}


def test_the_commands_are_shown_with_their_help() -> None:
    text = PAGES["commands"]()
    assert [name for name in COMMANDS if f"```text\n{help_of(name)}\n```" not in text] == []
