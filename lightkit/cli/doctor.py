"""`lightkit doctor` and `lightkit explain`: what is wrong with a run or what an error means, and the fix."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, report, say, table, width
from lightkit.common import run_files
from lightkit.common.collecting import importing
from lightkit.common.errors import DONE, FAILED, FAMILIES, Family, UserError
from lightkit.doctor import traceback
from lightkit.runs.catalog import find_run, project

if TYPE_CHECKING:
    from lightkit.doctor.finding import Finding


def doctor(args: list[str]) -> int:
    """Examine a run that is to be, one that was, or a traceback."""
    parser = Parser("doctor", "overrides*", seconds=60.0)
    options = parser.read([text for text in args if text != "-"])
    if not 0 < options.seconds < float("inf"):
        raise UserError("out of range", key="--seconds", expected="a number above 0", received=options.seconds)
    words = options.overrides
    text = handed_in(words, dash="-" in args)
    if text is not None:
        return explain_traceback(text, options)
    if len(words) == 1 and "=" not in words[0] and not words[0].startswith(("~", "+")):
        return _look_back(words[0], options)
    if options.mend:
        what, fix = "what is mended is a run, or a folder of runs", f"lightkit doctor {run_files.OUTPUTS}/ --mend"
        raise UserError(what, key="--mend", fix=fix, family="wrong-command")
    return _examine(options)


def _look_back(text: str, options: Namespace) -> int:
    """Examine a run that was, or the folders of many."""
    from lightkit.doctor.after_run import look_back
    from lightkit.doctor.folders import MARKS, look_through
    from lightkit.runs.reading import run_folders

    place, began = Path(text), time.monotonic()
    holds_runs = place.is_dir() and not (place / run_files.CONFIG).exists() and run_folders(place, MARKS)
    folder = place if holds_runs else _run(text)
    through = holds_runs or options.mend
    findings = look_through(folder, project(), mend=options.mend) if through else look_back(folder)
    return _show(findings, options, began=began)


def _run(text: str) -> Path:
    """Find the folder of a run; of what is none, say how it is examined before it becomes one.

    Raises:
        UserError: There is no such run.
    """
    try:
        return find_run(text, project())
    except UserError as error:
        more = f"of a run to come the overrides are meant: lightkit doctor GROUP={text}"
        if Path(text).is_dir():
            more = f"of images: lightkit doctor data=image_folder data.dataset.root={text} model=cnn"
        error.fix = f"{error.fix}; {more}"
        error.args = (error.render(),)
        raise


def _examine(options: Namespace) -> int:
    """Examine a run that is to be."""
    from lightkit.config import compose

    began = time.monotonic()
    cfg = compose(options.overrides, config_dir=options.config_dir, config_name=options.config_name).cfg
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    with importing():
        from lightkit.doctor.checks import examine, examined
        from lightkit.doctor.finding import HEADINGS

    left = options.seconds - (time.monotonic() - began)  # of a busy machine the imports take their share, too
    with examined(cfg, left, report=complain) as run:
        if options.json:
            with redirect_stdout(sys.stderr):  # what a model or a callback prints is no part of the answer
                findings = [*examine(run)]
            return _show(findings, options, began=began)
        say(run.title)
        heads = list[str]()

        def begin(name: str) -> None:
            heads[:] = [HEADINGS[name]] if name in HEADINGS else heads

        return _show(examine(run, begin), options, began=began, heads=heads)


def _show(findings: Iterable[Finding], options: Namespace, *, began: float, heads: list[str] | None = None) -> int:
    """Print findings as they come, and in the end what to do about them.

    Args:
        findings: What was found.
        options: Of the command line.
        began: When, by `time.monotonic()`.
        heads: What stands above the next line; emptied once it is printed.
    """
    from lightkit.doctor.finding import closing, line

    found, columns = list[Any](), min(width() or 110, 140)
    for finding in findings:
        found.append(finding)
        if not options.json and finding.status != "skipped":  # those are named together in the end
            for head in heads or ():
                say(f"\n{head}")
            if heads:
                heads.clear()
            say(line(finding, columns))
            sys.stdout.flush()
    seconds = time.monotonic() - began
    content = {"findings": [each.to_json() for each in found], "seconds": round(seconds, 1)}
    report(options, content, lambda: ["", *closing(found, seconds, columns)])
    bad = ("error", "warning") if options.strict else ("error",)
    return FAILED if any(each.status in bad for each in found) else DONE


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
