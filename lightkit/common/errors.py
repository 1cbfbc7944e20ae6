"""The one error a user sees: what is wrong, where, and how to mend it; the families of errors, and exit statuses.

Each family has a code: `lightkit explain CODE` prints what `docs/reference/errors.md` says of it. The first digit tells
where to look: 1 the command line and the configuration, 2 the data, 3 the model and its fine-tuning, 4 the machine and
the training itself, 5 runs, checkpoints and files. `docs/reference/exit-status.md` tells users of the exit statuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightkit.common.suggest import nearest
from lightkit.common.text import without_secrets

DONE = 0
"""All went well."""
FAILED = 1
"""Something else failed: a full disk, a loader process that died, an error in code; `doctor` found an error."""
WRONG_INPUT = 2
"""Configuration, data or command line are wrong; what a `UserError` has that names no other."""
NOT_FINITE = 3
"""The loss is no longer finite."""
OUT_OF_MEMORY = 4
"""Memory ran out, on the GPU or the host."""
UNREADABLE = 5
"""A checkpoint or file of weights cannot be read."""
AUDIT_FAILED = 6
"""The audit of a fine-tuning found that it does not train what it says."""
LOST_RANK = 7
"""This process ended because another one of its run did, or does not answer."""
IN_USE = 75
"""Another process runs in the folder: the same command may do in a while (EX_TEMPFAIL of sysexits.h)."""
INTERRUPTED = 130
"""Ctrl-C, which is signal 2."""
BROKEN_PIPE = 141
"""Who reads the output has gone (`| head`), which is signal 13."""


def of_signal(number: int) -> int:
    """Return the status of a process that a signal ended, as shells count it."""
    return 128 + number


def of_process(code: int) -> int:
    """Return the status of a child process as shells count it.

    Args:
        code: As `subprocess` gives it: negative where a signal ended the process.
    """
    return of_signal(-code) if code < 0 else code


_MOST = 60
"""Choices beyond which only the nearest are shown."""


class UserError(ValueError):
    """A mistake in what the user gave: configuration, file, data or command line.

    The command line prints it without a traceback and exits with `exit_code`; from a notebook it is
    a plain `ValueError` whose text says the same.

    Args:
        what: One sentence: what is wrong.
        key: Full configuration key (`data.dataset.target`) or file the mistake is in.
        argument: In place of `key`, the argument of the function or class that refuses its value. Whoever called it
            knows the key of the configuration that the argument came from, and adds it: see `keys_under`. An empty
            one means what was called as a whole: no single argument is at fault.
        expected: What would have been right.
        received: What came instead.
        choices: The valid values; the nearest to `received` is pointed out.
        fix: What to type or change.
        origin: `file:line` or the command-line override the value came from.
        exit_code: Exit status of the process.
        family: Slug of the family (`unknown-key`) that `lightkit explain` says more about; None goes by exit status and
            key.
    """

    def __init__(
        self,
        what: str,
        *,
        key: str | None = None,
        argument: str | None = None,
        expected: str | None = None,
        received: object = None,
        choices: Iterable[str] = (),
        fix: str | None = None,
        origin: str | None = None,
        exit_code: int = WRONG_INPUT,
        family: str | None = None,
    ) -> None:
        self.what, self.key, self.argument = what, key, argument
        self.expected, self.received = expected, received
        self.choices, self.fix, self.origin, self.exit_code = tuple(choices), fix, origin, exit_code
        self._family = family_named(family) if family is not None else None
        super().__init__(self.render())

    @property
    def families(self) -> tuple[Family, ...]:
        """The family of the error; of several mistakes each family once."""
        return (self._family or usual_family(self.key, self.exit_code),)

    def render(self) -> str:
        """Return the message as shown to the user: one headline and one indented line per known fact."""
        place = self.key or self.argument
        head = f"{place}: {self.what}" if place else self.what
        rows = [("at", self.origin), ("expected", self.expected)]
        if self.received is not None:
            rows.append(("received", f"{self.received!r}"))
        if self.choices:
            close = nearest(str(self.received), self.choices)
            count = len(self.choices)
            shown = ", ".join(self.choices[:20]) + (f", … ({count} in all)" if count > 20 else "")
            if close and count > _MOST:  # the first of hundreds tell nobody anything
                shown = f"{count} in all"
            rows.append(("choices", f"{shown} (nearest: {', '.join(close)})" if close else shown))
        rows.append(("fix", self.fix))
        return without_secrets("\n".join([head, *(f"    {label + ':':<10}{text}" for label, text in rows if text)]))

    def change_fix(self, fix: str) -> None:
        """Say something else about what to type or change."""
        self.fix = fix
        self.args = (self.render(),)

    def move(self, key: str, place: str) -> None:
        """Name another place, to which what stands at or below a key belongs, also in what to type."""
        for one in (*getattr(self, "errors", ()), self):
            one.key, one.fix = (text and re.sub(rf"\b{key}\b(?=[.=]|$)", place, text) for text in (one.key, one.fix))
            one.args = (one.render(),)

    def put_under(self, key: str) -> None:
        """Name the key that the refused argument stands under, where no key is named yet."""
        if self.key is None and self.argument is not None:
            self.key = f"{key}.{self.argument}" if self.argument else key
            self.args = (self.render(),)


class UserErrors(UserError):
    """Several mistakes found in one go, shown as one report.

    Args:
        errors: The single mistakes, in the order to show them.
    """

    def __init__(self, errors: Iterable[UserError]) -> None:
        self.errors = tuple(errors)
        count = len(self.errors)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} found")

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of the mistakes, each once, in the order they are shown."""
        return tuple(dict.fromkeys(family for error in self.errors for family in error.families))

    def put_under(self, key: str) -> None:
        """Name the key of every problem that only names an argument."""
        for error in self.errors:
            error.put_under(key)
        self.args = (self.render(),)

    def render(self) -> str:
        """Return every problem in turn, a blank line between two, and their number at the end."""
        return "\n\n".join([*(error.render() for error in self.errors), self.what])


class Problems(list[UserError]):
    """Collects mistakes, to tell all of them in one report."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collect the error that what is done inside raises."""
        try:
            yield
        except UserErrors as errors:
            self.extend(errors.errors)
        except UserError as error:
            self.append(error)

    def raise_any(self) -> None:
        """Raise what was collected, if anything was."""
        if self:
            raise self[0] if len(self) == 1 else UserErrors(self)


@contextmanager
def keys_under(key: str) -> Iterator[None]:
    """Add the key of the configuration to errors that name an argument: `gamma` becomes `scheduler.gamma`.

    Args:
        key: Key of the node whose values are the arguments of what is called inside.

    Raises:
        UserError: What is called inside refused a value.
    """
    try:
        yield
    except UserError as error:
        error.put_under(key)
        raise


@contextmanager
def writing_to(path: Path, what: str = "cannot write", *, fix: str | None = None) -> Iterator[None]:
    """Tell of a file or a folder that it cannot be written, where what is done inside fails with that.

    Args:
        path: The file or folder.
        what: What cannot be done.
        fix: How to mend it.

    Raises:
        UserError: The system refuses it.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror or error}", key=str(path), fix=fix, family="cannot-write") from error


@dataclass(frozen=True)
class Family:
    """Errors with the same causes and the same ways to mend them."""

    code: str
    """What the terminal shows, such as `LK101`. It keeps its meaning in later versions."""
    slug: str
    """What the source calls it."""
    title: str
    """Its heading in `docs/reference/errors.md`."""


_LISTED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
FAMILIES = tuple(Family(code, slug, title) for code, (slug, title) in _LISTED.items())
_BY_SLUG = {family.slug: family for family in FAMILIES}
_BY_STATUS = {
    FAILED: "process-failed",
    NOT_FINITE: "not-finite",
    OUT_OF_MEMORY: "out-of-memory",
    UNREADABLE: "checkpoint-unreadable",
    AUDIT_FAILED: "audit-failed",
    LOST_RANK: "lost-process",
}
_BY_KEY = {
    "data.split": "split",
    "data": "data-setting",
    "defaults": "unreadable-configuration",
    "device": "device-setting",
    "finetune.weights": "weights",
    "finetune": "finetuning",
    "loss": "loss-or-metric",
    "metrics": "loss-or-metric",
    "model": "model-misfit",
    "trainer.task": "model-misfit",
    "trust": "target-not-trusted",
}
"""Families by how a key begins, the longer beginning first."""


POINTER = "more: lightkit explain "
"""How the last line of an error begins."""


def pointer(families: Iterable[Family]) -> str:
    """Return the last line of an error on the terminal: the command that says more."""
    return POINTER + " ".join(family.code for family in families)


def family_named(slug: str) -> Family:
    """Return the family with a slug."""
    return _BY_SLUG[slug]


def usual_family(key: str | None, exit_code: int) -> Family:
    """Return the family of an error that names none: by its exit status, or else by how its key begins.

    Args:
        key: Key of the configuration, file, or command and option at fault.
        exit_code: Exit status of the process.
    """
    if exit_code in _BY_STATUS:
        return _BY_SLUG[_BY_STATUS[exit_code]]
    place = key or ""
    if place.startswith(("lightkit ", "-")):
        return _BY_SLUG["wrong-command"]
    beginning = next((known for known in _BY_KEY if f"{place}.".startswith(f"{known}.")), None)
    if beginning is not None:
        return _BY_SLUG[_BY_KEY[beginning]]
    return _BY_SLUG["file" if "/" in place else "wrong-value"]
