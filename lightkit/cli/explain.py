"""`lightkit explain`: causes and fixes of an error: by its code from the page of the manual, or by a text handed in."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import report, table, width
from lightkit.common.errors import FAMILIES, Family, UserError
from lightkit.common.exit_codes import DONE, FAILED
from lightkit.doctor import traceback

PAGE = "reference/errors.md"
"""The page of the manual, with a section for each code."""
_TABLES = (".csv", ".tsv")
_TABLE = "lightkit doctor data=csv"
_PIPE_SECONDS = 1.0
"""How long a pipe that nobody asked to read may be silent before it is left alone."""
_HEADING = re.compile(r"^## (?P<title>.+) \{#(?P<anchor>lk\d+)\}$")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def explain(args: list[str]) -> int:
    """Print the sections of the codes, what is known of a text, or a list of all codes.

    Raises:
        UserError: There is no such code.
    """
    options = Parser("explain", "codes*").read([text for text in args if text != "-"])
    pasted = _pasted(options.codes, dash="-" in args)
    if pasted is not None:
        return explain_traceback(pasted, options)
    families = list(dict.fromkeys(_family(text) for text in options.codes))
    if families:
        texts = sections()
        content = [{**vars(family), "text": texts.get(family.code)} for family in families]
        return report(options, content, lambda: "\n\n\n".join(texts[family.code] for family in families))
    rows = [[each.code, each.slug, each.title] for each in FAMILIES]
    whole = table(["code", "name", "meaning"], rows) + "\n\nlightkit explain CODE says more"
    return report(options, list(map(vars, FAMILIES)), lambda: whole)


def _pasted(words: list[str], *, dash: bool) -> str | None:
    """Return the text of an error that was handed in; None where codes are asked for, or nothing is."""
    if any(map(_named, words)):
        return None
    text = handed_in(words, dash=dash)
    if text is not None or not words:
        return text or None
    text = " ".join(words)
    found = traceback.explain(text)
    return text if found.known or found.message or len(text.split()) > 3 else None


def _named(text: str) -> Family | None:
    return next((family for family in FAMILIES if text.lower() in (family.code.lower(), family.slug)), None)


def _family(text: str) -> Family:
    if (family := _named(text)) is not None:
        return family
    names = [name for family in FAMILIES for name in (family.code, family.slug)]
    key, fix = "lightkit explain", "lightkit explain lists all of them; the text of another error goes in quotes"
    raise UserError("no such code", key=key, received=text, choices=names, fix=fix)


def sections() -> dict[str, str]:
    """Read the page: the text of each section for the terminal, its title first, by code."""
    from lightkit.config.project import shipped_docs

    found = dict[str, list[str]]()
    code = ""
    for line in (shipped_docs() / PAGE).read_text(encoding="utf-8").splitlines():
        heading = _HEADING.match(line)
        if heading is not None:
            code = heading["anchor"].upper()
            found[code] = [heading["title"]]
        elif code:
            found[code].append(line)
    return {code: "\n".join(_plain(lines)).strip() for code, lines in found.items()}


def _plain(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a section as plain text: blocks indented, links as their words, no comments."""
    inside = False
    for line in lines:
        if line.startswith("```"):
            inside = not inside
        elif inside:
            yield f"    {line}".rstrip()
        elif not line.startswith("<!--"):
            yield _LINK.sub(r"\1", line).replace("**", "")


def handed_in(words: Sequence[str], *, dash: bool) -> str | None:
    """Return the text of a traceback that was handed in by a file or standard input; None where there is none.

    Args:
        words: Arguments of the command.
        dash: Whether `-` is one of them: standard input is read, however long it takes.

    Raises:
        UserError: The file is a table.
    """
    if len(words) == 1 and Path(words[0]).is_file():
        if Path(words[0]).suffix in _TABLES:
            what, fix = "this is a table, not a traceback", f"{_TABLE} data.dataset.path={words[0]}"
            raise UserError(what, received=words[0], fix=f"{fix} data.dataset.target=COLUMN")
        content = Path(words[0]).read_bytes()
        marked = content[:2] in (b"\xff\xfe", b"\xfe\xff")  # as Windows writes what is redirected to a file
        return content.decode("utf-16" if marked else "utf-8", errors="replace")
    if dash:
        return sys.stdin.read()
    if words or sys.stdin is None or sys.stdin.closed:
        return None
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return None
    silent = stat.S_ISFIFO(mode) and not select.select([sys.stdin], [], [], _PIPE_SECONDS)[0]
    if silent or not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        return None
    return sys.stdin.read() or ("" if stat.S_ISREG(mode) else None)


def explain_traceback(text: str, options: Namespace) -> int:
    """Print what is known of a traceback; returns the exit status.

    Args:
        text: The traceback, or any text with one in it.
        options: Of the command line, with `json`.
    """
    found = traceback.explain(text)
    report(options, found.to_json(), lambda: traceback.lines(found, width() or 110))
    return DONE if found.known else FAILED
