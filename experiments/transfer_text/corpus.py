"""The text to adapt to: the reference of the Python language, in English prose, as `help("topics")` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pydoc_data.topics import topics


def language_reference() -> dict[str, str]:
    """Topics of Python's built-in help by name; every Python brings them."""
    return without_repetitions(topics)


def without_repetitions(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts without paragraphs that stood in an earlier one, in the order of their names; white space does not count.

    Topics repeat sections of others, which would be in the training part and in the test part too.
    """
    seen: set[str] = set()
    kept: dict[str, str] = {}
    for name in sorted(texts):
        new: list[str] = []
        for paragraph in texts[name].split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                new.append(paragraph)
        if new:
            kept[name] = "\n\n".join([*new, ""])
    return kept
