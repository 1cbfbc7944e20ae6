"""All pages: every block has a fate, every link leads somewhere, and a test runs every page."""

from __future__ import annotations

import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lightkit.config import compose_jobs
from tests.docs.pages import COMPARED, ROOT, RUN, Terminal, blocks, check_page, differs, pages

_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_IMAGE = re.compile(r"!\[(?P<words>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")


def test_every_block_runs_is_compared_or_says_why_not() -> None:
    lost = [
        block.place
        for path in pages()
        for block in blocks(path)
        if not (block.shown or block.language in (*RUN, *COMPARED))
    ]
    assert lost == []


def test_every_page_with_blocks_has_a_test() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "docs").glob("test_*.py"))
    wanted = [str(path.relative_to(ROOT)) for path in pages() if any(not block.shown for block in blocks(path))]
    assert [page for page in wanted if f'"{page}"' not in text] == []


@pytest.mark.parametrize("page", ["clusters", "devices"])
def test_sweeps_and_runs_that_are_only_shown_have_options_that_there_are(page: str, project: Path) -> None:
    """A machine without a cluster cannot run them; what is typed is checked as on one."""
    shown = [block for block in blocks(ROOT / "docs" / "guides" / f"{page}.md") if block.shown]
    lines = [shlex.split(line, comments=True) for block in shown for line in block.code.splitlines()]
    typed = [words for words in lines if words[:2] == ["lightkit", "train"]]
    assert typed
    for words in typed:
        assert compose_jobs([word for word in words[2:] if not word.startswith("-")])


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them, and those it sets itself."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+?)(?: \{#[\w-]+\})?$", text, re.M)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return slugs | {*re.findall(r'(?:\{#|<a id=")([\w-]+)', text)}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for path in pages():
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for found in (*_LINK.finditer(text), *_IMAGE.finditer(text)):
            target, _, anchor = found["target"].partition("#")
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            place = (path.parent / target).resolve() if target else path
            known = place.exists() and (not anchor or place.suffix != ".md" or anchor in anchors(place))
            broken += [] if known else [f"{path.relative_to(ROOT)}: {found['target']}"]
    assert broken == []


def test_every_name_that_is_imported_is_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in pages())
    others = {"lightkit.group", "lightkit.plugins"}  # a tag of MLflow, and a group of entry points
    lost = []
    for name in sorted({*re.findall(r"`(lightkit(?:\.\w+)+)", text)} - others):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            lost.append(name)
    assert lost == []


def test_the_home_page_lists_every_guide_in_the_groups_of_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    nav = {title: entry for part in site["nav"] for title, entry in part.items()}
    guides = {group: [*pages_of(entries)] for part in nav["Guides"] for group, entries in part.items()}
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## Guides")[2].partition("\n## ")[0]
    listed = {part.split("\n")[0]: re.findall(r"\((guides/[\w-]+\.md)\)", part) for part in text.split("### ")[1:]}
    every = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]

    assert listed == guides
    assert sorted([*pages_of(site["nav"])]) == sorted(every)
    missing = [
        path for path in (*site["extra_css"], *site["extra"]["polyfills"]) if not (ROOT / "docs" / path).exists()
    ]
    assert missing == []


def pages_of(nav: object) -> Iterator[str]:
    """List the files of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []:
            yield from pages_of(entry)


def test_every_picture_is_described() -> None:
    assert [
        path.name
        for path in pages()
        for found in _IMAGE.finditer(path.read_text(encoding="utf-8"))
        if not found["words"]
    ] == []


def test_the_readme_takes_five_minutes_and_runs_all_that_it_shows() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 10_000
    shown = [*blocks(ROOT / "README.md")]
    assert [block.place for block in shown if block.shown] == []
    lines = [line for block in shown if block.language == "bash" for line in block.code.split("\n")]
    commands = ("new", "train", "config", "plan", "resume", "eval", "predict", "runs", "board")
    for command in ("make train", "make test", *commands):
        assert any(line.removeprefix("lightkit ").startswith(command) for line in lines), command


def test_the_architecture_shows_the_tree_and_every_room_and_command_that_there_is() -> None:
    page = ROOT / "docs" / "concepts" / "architecture.md"
    tree = next(block.code for block in blocks(page) if block.code.startswith("pyproject.toml"))
    names = [line.split()[0] for line in tree.splitlines()]
    assert [name for name in names if name != "outputs/" and not (ROOT / name).exists()] == []
    named = {*re.findall(r"`(\w+/|\w+\.py)`", page.read_text(encoding="utf-8"))}
    rooms = {f"{file.parent.name}/" for file in (ROOT / "lightkit").glob("*/__init__.py")}
    commands = {file.name for file in (ROOT / "lightkit" / "cli").glob("*.py")}
    assert rooms - named == set()
    assert commands - named == {"__init__.py"}


@pytest.mark.parametrize(
    ("shown", "printed", "wrong"),
    [
        ("loss 0.5\n", "loss 0.25\n", ""),
        ("loss 0.5\n", "lost 0.25\n", "this line is not printed there: loss 0"),
        ("a\n...\nz\n", "a\nb\nc\nz\n", ""),
        ("a\nz\n", "a\nb\nz\n", "this line is not printed there: z"),
        ("a\n", "a\nb\n", "more is printed"),
        ("a\n...\n", "a\nb\n", ""),
        ("2026-01-31/12-00-00-digits\n", "2027-02-01/13-14-15-digits\n", ""),
    ],
)
def test_outputs_are_compared_without_their_numbers(shown: str, printed: str, wrong: str) -> None:
    found = differs(shown, printed)
    assert found.startswith(wrong) if wrong else found == ""


def test_what_needs_a_missing_package_is_left_out_with_its_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    missing = "<!-- run: needs=torch needs=no_such_package -->\n```bash\nfalse\n```\n```text\nnothing\n```\n"
    page.write_text(f"{missing}<!-- run: needs=torch -->\n```bash\necho here\n```\n```text\nhere\n```\n")
    check_page(page, Terminal(tmp_path, tmp_path))
