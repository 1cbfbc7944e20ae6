"""`lightkit doctor`: what is wrong with a run before it starts, after it ended, or with a traceback."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser
from lightkit.cli.explain import explain_traceback, handed_in
from lightkit.cli.terminal import complain, report, say, width
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import DONE, FAILED
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
