"""Name patterns: what a pattern over dotted names means, the same for every key of the configuration that takes some.

A glob (`layer4.*`) has to fit a whole name: `*` stands for any characters, dots too, `?` for one, `[0-3]` for one of
these. After `re:` comes a regular expression, which is searched in the name and tied to its ends by `^` and `$`:
`re:^layer[34]` fits every name that begins so. Where parameters or keys are chosen, a pattern that fits the name of
something also stands for all that lies below it: `layer4` is every parameter of `layer4`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from lightkit.common.errors import UserError

_EXPRESSION = "re:"


class Pattern:
    """One pattern, which can only be asked what it means.

    Args:
        text: The pattern as it is written.
        key: Configuration key that holds it, for the error.
        argument: In place of `key`, the argument that holds it: see `UserError`.

    Raises:
        UserError: The regular expression does not compile.
    """

    def __init__(self, text: str, *, key: str | None = None, argument: str | None = None) -> None:
        self.text = text
        try:
            self._found = _compiled(text)
        except re.error as error:
            what = f"not a regular expression: {error}"
            raise UserError(what, key=key, argument=argument, received=text, family="pattern") from error

    def fits(self, name: str) -> bool:
        """Tell whether it fits this very name."""
        return self._found(name) is not None

    def covers(self, name: str) -> bool:
        """Tell whether it fits the name or that of something above it, in which the name lies."""
        parts = name.split(".")
        return any(self.fits(".".join(parts[:count])) for count in range(1, len(parts) + 1))


class Matched(NamedTuple):
    """What one pattern of a configuration stands for in a network."""

    key: str
    """Where it stands: `finetune.freeze`."""
    pattern: str
    """The pattern or label."""
    names: tuple[str, ...]
    """Names of the parameters, or paths of the modules."""
    modules: bool = False
    """Whether these are modules."""


def named(key: str, patterns: Iterable[str]) -> bool:
    """Tell whether one of the patterns covers a dotted key."""
    return any(Pattern(pattern).covers(key) for pattern in patterns)


@cache
def _compiled(text: str) -> Callable[[str], object]:
    if text.startswith(_EXPRESSION):
        return re.compile(text.removeprefix(_EXPRESSION)).search
    return re.compile(fnmatch.translate(text)).fullmatch
