"""Pages of the manual that are written from the source: `make conf` makes them of the schema and the commands' help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lightkit.cli.arguments import COMMANDS, help_of
from lightkit.common.suggest import names_by
from lightkit.config.describe import OptionRow, describe_group, first_comment, list_options, option_arguments
from lightkit.config.loader import make_loader
from lightkit.config.project import shipped_conf, shipped_docs

GROUPS = (
    "data", "model", "loss", "optim", "scheduler", "metrics", "trainer", "finetune", "ensemble", "cv",
    "device",
    "checkpoint", "resume", "logger", "sweep",
)  # fmt: skip
"""The groups of the configuration, in the order in which a run uses them."""
_NOTE = "<!-- `make conf` writes this page. Change the schema or the help of the command instead. -->"
_OF_NAMES = {
    "keys": ("Keys", "lightkit", "elsewhere"),
    "values": ("Values", "lightkit", "elsewhere"),
    "advice": ("What needs no key", "in lightkit", "elsewhere"),
}
"""The tables of the page of names: the section of the data, the heading, and the titles."""


def _head(page: str) -> str:
    """Return what a page begins with."""
    return (Path(__file__).with_name("pages") / f"{page}.md").read_text(encoding="utf-8")


def options_page() -> str:
    """Write `docs/reference/options.md`."""
    groups = ", ".join(f"[{name}](#{name})" for name in GROUPS)
    lines = [
        _head("options").format(note=_NOTE, groups=groups),
        _row("key", "default", "meaning"),
        "| --- | --- | --- |",
    ]
    lines += [_row(f"`{key}`", f"`{default}`", meaning) for key, default, meaning in first_keys()]
    lines += ["", "## Keys without a group", "", *_keys(describe_group(""))]
    for group in GROUPS:
        lines += ["", f"## {group}", "", *_choices(group), "", *_keys(describe_group(group))]
    return "\n".join(lines) + "\n"


def first_keys() -> list[tuple[str, str, str]]:
    """List the keys that the help of `lightkit train` names, with their defaults and meanings."""
    _, _, below = help_of("train").partition("keys that most runs need")
    return re.findall(r"^  (\S+) {2,}(\S+) {2,}(.+)$", below.partition("\n\n")[0], re.MULTILINE)


def _choices(group: str) -> Iterator[str]:
    """Yield the table of what `group=` can choose."""
    project = shipped_conf().parent
    loader = make_loader(project=project)
    yield "| option | what it is | arguments it sets |"
    yield "| --- | --- | --- |"
    for option in list_options(group, project=project):
        path = loader.file_of(f"{group}/{option.name}")
        found = [each for each in option_arguments(loader, group, option.name) if each.written]
        arguments = ", ".join(f"`{each.key.removeprefix(f'{group}.')}={each.value}`" for each in found)
        yield _row(f"`{group}={option.name}`", first_comment(path) if path else option.comment, arguments)


def _keys(rows: list[OptionRow]) -> Iterator[str]:
    """Yield the table of keys."""
    if rows:
        yield "| key | type | default | meaning |"
        yield "| --- | --- | --- | --- |"
    for row in rows:
        yield _row(f"`{row.key}`", row.type, f"`{row.default}`" if row.default else "", row.meaning)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def commands_page() -> str:
    """Write `docs/reference/commands.md`."""
    rows = [_row(f"[`lightkit {name}`](#lightkit-{name})", summary) for name, (_, summary) in COMMANDS.items()]
    parts = [_head("commands").format(note=_NOTE) + "\n".join(["| command | what it does |", "| --- | --- |", *rows])]
    for name in COMMANDS:
        shown = "<!-- shown: it is the help of the command, which another test compares -->"
        parts.append(f"## lightkit {name}\n\n{shown}\n```text\n{help_of(name)}\n```")
    return "\n\n".join(parts) + "\n"


def names_page() -> str:
    """Write `docs/reference/names.md`."""
    lines = [_head("names").format(note=_NOTE)]
    for section, (heading, *titles) in _OF_NAMES.items():
        names: dict[str, list[str]] = {}
        for name, meant in names_by(section).items():
            names.setdefault(meant, []).append(f"`{name}`")
        cells = ((meant if section == "advice" else f"`{meant}`", ", ".join(each)) for meant, each in names.items())
        lines += [f"## {heading}", "", _row(*titles), "| --- | --- |", *(_row(*pair) for pair in cells), ""]
    return "\n".join(lines)


PAGES = {"options": options_page, "commands": commands_page, "names": names_page}
"""What writes each page, by its name."""

if __name__ == "__main__":
    for name, write in PAGES.items():
        (shipped_docs() / "reference" / f"{name}.md").write_text(write(), encoding="utf-8")
