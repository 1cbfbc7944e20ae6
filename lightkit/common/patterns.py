"""Name patterns: globs by default, regular expressions after `re:`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from lightkit.common.errors import UserError


def matcher(pattern: str) -> re.Pattern[str]:
    """Compile a pattern over dotted names.

    `layer4.*` is a glob over the whole name (`*` also crosses dots); `re:^layer[34]` is a regular expression that is
    searched in it.

    Raises:
        UserError: The regular expression does not compile.
    """
    if not pattern.startswith("re:"):
        return re.compile(fnmatch.translate(pattern))
    try:
        return re.compile(pattern[3:])
    except re.error as error:
        raise UserError(f"not a regular expression: {error}", received=pattern) from error


def matching(patterns: Iterable[str] | str, names: Iterable[str], *, key: str) -> dict[str, list[str]]:
    """The names each pattern matches, in the order of `names`.

    Args:
        patterns: One pattern or several.
        names: The names to choose from.
        key: Configuration key that holds the patterns, for the error.

    Raises:
        UserError: A pattern matches nothing.
    """
    pool, found = list(names), {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        compiled = matcher(pattern)
        found[pattern] = [name for name in pool if compiled.search(name)]
        if not found[pattern]:
            raise UserError("the pattern matches nothing", key=key, received=pattern, choices=pool)
    return found


def named(key: str, patterns: Iterable[str]) -> bool:
    """Whether a glob fits a dotted key or something above it."""
    parts = key.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(name, pattern) for name in above for pattern in patterns)
