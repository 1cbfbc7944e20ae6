"""Explain a traceback: which known error it is, where in one's own code it came from, and what helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_out_of_memory, user_frame
from lightkit.common.reading import data_beside
from lightkit.doctor.finding import Finding, wrapped

ENDS = "a run would end here too"
_MOST = 3
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"^\[(?:rank|default)\d+\]: ?", re.M)
_MESSAGE = re.compile(r"^((?:[\w]+\.)*\w*(?:Error|Exception|Interrupt|Exit|Failed)\b(?::.*)?)$", re.M)
_OF_A_LAUNCHER = re.compile(r"(\w+\.)*(ChildFailedError|ProcessRaisedException|ProcessExitedException)\b")
"""An error that says no more than that a process ended."""
_FRAMES = (
    re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S+))?\n(?:\s+(?P<code>\S.*))?', re.M),
    # Of a notebook, in which an arrow marks the line among its neighbours.
    re.compile(
        r"^(?:File )?(?P<file><ipython-input-\S+?>|Cell In\s?\[\d+\]|\S+\.py)"
        r"(?:, line (?P<line>\d+)|:\d+)?(?:,? in (?P<name><?\w[\w.]*>?).*)?\n"
        r"(?:.*\n){0,8}?-+> ?(?P<arrow>\d+) (?P<code>.*)",
        re.M,
    ),
    re.compile(
        r"^│ (?P<file>\S+\.py):(?P<line>\d+) in (?P<name>\S+) +│$(?:\n│.*){0,8}?\n│ ❱ +\d+ (?:│ )*(?P<code>.*?) *│$",
        re.M,
    ),
)
"""How a line of a program stands in a traceback of Python, in one of a notebook, and in one that rich draws."""
_INSTALLED = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python\d|[/\\]bin[/\\]\w+$|^<(?!ipython)|[/\\]lightkit[/\\]\w+[/\\]\w+"
)
_CODE = re.compile(r"lightkit explain ((?:LK\d+ ?)+)")
_SPACE = re.compile(r" (?!\?)(?![^\[\]]*\])")
"""A space in a pattern, where it stands for itself: in the text the line may have been wrapped there."""


@dataclass(frozen=True)
class Explained:
    """What a traceback means."""

    message: str
    """The last line of its last error; empty where there is none."""
    place: str
    """The deepest line of code that is not installed, such as `train.py:12, in step: loss.backward()`."""
    known: tuple[Recognised, ...]
    """What is known of it: what came first in the text comes first here, and is most often the cause."""
    codes: tuple[str, ...] = ()
    """Codes of lightkit in the text, for `lightkit explain`."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "known": [asdict(each) for each in self.known], "codes": [*self.codes]}


def explain(text: str) -> Explained:
    """Look for known errors in a text.

    Args:
        text: A traceback, or the output of a program with one in it.
    """
    text = _RANK.sub("", _COLOURS.sub("", text)).replace("\r\n", "\n")
    matches = list[tuple[int, Recognised]]()
    for known in known_errors():
        match = _match(known, text)
        if match is not None:
            numbers = {name: value or "" for name, value in match.groupdict().items()}
            says = text[text.rfind("\n", 0, match.start()) + 1 : match.end()] + text[match.end() :].partition("\n")[0]
            cause, fix = known.cause.format(**numbers), known.fix.format(**numbers)
            matches.append((match.start(), Recognised(known.name, " ".join(says.split()), cause, fix, known.key)))
    matches.sort(key=lambda each: each[0])
    messages = [match[1].strip() for match in _MESSAGE.finditer(text)]
    messages = [each for each in messages if not _OF_A_LAUNCHER.match(each)] or messages
    codes = [code for match in _CODE.finditer(text) for code in match[1].split()]
    recognised = tuple(each for _, each in matches[:_MOST])
    return Explained(messages[-1] if messages else "", _own_place(text), recognised, tuple(dict.fromkeys(codes)))


def _match(known: Known, text: str) -> re.Match[str] | None:
    if (known.beside and not re.search(known.beside, text)) or (known.unless and re.search(known.unless, text)):
        return None
    return re.search(_SPACE.sub(r"\\s+", known.pattern), text, re.M)


def _own_place(text: str) -> str:
    frames = [frame for pattern in _FRAMES for frame in pattern.finditer(text) if not _INSTALLED.search(frame["file"])]
    if not frames:
        return ""
    last = max(frames, key=lambda frame: frame.start())
    words = last.groupdict()
    number = words["line"] or words["arrow"]
    name = f", in {last['name']}" if last["name"] else ""
    code = f": {last['code'].strip()}" if last["code"] else ""
    return f"{last['file']}:{number}{name}{code}"


def lines(explained: Explained, width: int) -> Iterator[str]:
    """Write an explanation.

    Args:
        explained: What is known.
        width: Characters in a line.
    """
    if explained.message and not any(explained.message in each.says for each in explained.known):
        yield _row("error", explained.message, width)
    if explained.place:
        yield _row("your code", explained.place, width)
    for each in explained.known:
        yield f"\n{each.name}"
        rows = [("says", each.says), ("cause", each.cause), ("fix", each.fix), ("in lightkit", each.key)]
        yield from (_row(f"    {label}", value, width) for label, value in rows if value)
    if explained.codes:
        yield f"\nlightkit explain {' '.join(explained.codes)} says more"
    elif not explained.known and explained.message:
        yield "\nnot an error that is known here; the last line of the traceback says most"
    elif not explained.known:
        yield "no traceback and no known error in this text"


def _row(label: str, text: str, width: int) -> str:
    return wrapped(f"{label + ':':<17}", text, width)


@dataclass(frozen=True)
class Known:
    """An error of PyTorch, CUDA or the system below them."""

    name: str
    """What it is, in a few words."""
    pattern: str
    """Regular expression that is searched for in a text; its named groups stand in braces in `cause` and `fix`."""
    cause: str
    """What usually causes it."""
    fix: str
    """How to mend it, in PyTorch."""
    key: str = ""
    """What does so in lightkit, where there is something: a key with a value, or a command."""
    beside: str = ""
    """Regular expression that has to be in the text as well."""
    unless: str = ""
    """Regular expression that must not be in the text."""


@dataclass(frozen=True)
class Recognised:
    """A known error that was found in a text."""

    name: str
    """See `Known`."""
    says: str
    """The line in which it was found."""
    cause: str
    """What usually causes it, with the numbers of this one."""
    fix: str
    """How to mend it, in PyTorch."""
    key: str = ""
    """What does so in lightkit."""


@cache
def known_errors() -> tuple[Known, ...]:
    """Return all known errors, which `traceback.yaml` lists."""
    return tuple(Known(**each) for each in data_beside(__file__)["errors"])


def failure(error: Exception, name: str) -> Finding:
    """Say what an error means that would end the run: as `lightkit train` and `lightkit explain` do.

    Args:
        error: The error.
        name: The check in which it came.
    """
    from lightkit.runner.faults import as_user_error

    if is_out_of_memory(error):
        return Finding(name, "error", "memory ran out", ENDS, "data.batch_size", "trainer.find_batch_size=auto")
    shown, place = error if isinstance(error, UserError) else as_user_error(error), user_frame(error)
    at = f" ({place})" if place else ""
    if shown is not None:
        received = f", received {shown.received}" if getattr(shown, "received", None) is not None else ""
        return Finding(name, "error", f"{shown.what}{received}{at}", ENDS, shown.key or "", shown.fix or "")
    known = explain(in_short(error)).known[:1]
    fix = "; ".join(text for each in known for text in (each.fix, each.key) if text)
    why = f"{known[0].cause}: {ENDS}" if known else ENDS
    fix = fix or "LIGHTKIT_DEBUG=1 lightkit train shows where"
    return Finding(name, "error", f"{in_short(error)}{at}", why, "model", fix)
