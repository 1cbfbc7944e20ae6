"""`lightkit explain`: causes and fixes of an error: by its code from the page of the manual, or by its text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lightkit.cli.arguments import Parser
from lightkit.cli.pasted import explain_traceback, handed_in
from lightkit.cli.terminal import json_text, say, table
from lightkit.common.error_families import FAMILIES, Family
from lightkit.common.errors import UserError

PAGE = "reference/errors.md"
"""The page of the manual, with a section for each code."""
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
        return explain_traceback(pasted, as_json=options.json)
    asked = list(dict.fromkeys(_family(text) for text in options.codes))
    texts = sections() if asked else {}
    if options.json:
        rows = [{**vars(family), "text": texts.get(family.code)} for family in asked or FAMILIES]
        say(json_text(rows if asked else list(map(vars, FAMILIES))))
    elif asked:
        say("\n\n\n".join(texts[family.code] for family in asked))
    else:
        say(table(["code", "name", "meaning"], [[each.code, each.slug, each.title] for each in FAMILIES]))
        say("\nlightkit explain CODE says more")
    return 0


def _pasted(words: list[str], *, dash: bool) -> str | None:
    """Return the text of an error that was handed in; None where codes are asked for, or nothing is."""
    if any(_is_code(word) for word in words):
        return None
    text = handed_in(words, dash=dash)
    if text is not None or not words:
        return text or None
    # Here, not above: what is known takes a moment to read.
    from lightkit.doctor.traceback import explain as look_up

    text = " ".join(words)
    found = look_up(text)
    return text if found.known or found.message or len(text.split()) > 3 else None


def _is_code(text: str) -> bool:
    return any(text.lower() in (family.code.lower(), family.slug) for family in FAMILIES)


def _family(text: str) -> Family:
    for family in FAMILIES:
        if text.lower() in (family.code.lower(), family.slug):
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
