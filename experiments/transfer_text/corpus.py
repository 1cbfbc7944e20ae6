"""The text to adapt to: the reference of the Python language, in English prose, as `help("topics")` shows it."""

from __future__ import annotations

from pydoc_data.topics import topics

from lightkit.data.text import Text


def language_reference(
    context_length: int = 128,
    *,
    stride: int | None = None,
    val: float = 0.1,
    test: float = 0.2,
    max_chars: int | None = None,
    vocabulary: str | None = "ascii",
) -> Text:
    """The topics of Python's built-in help, each a text of its own; comes with every Python.

    Several topics repeat sections of others. A paragraph is kept where it stands first only, so that none of the test
    part was seen in training.

    Args:
        context_length: Characters of one sample.
        stride: Characters between the starts of two training windows; None takes `context_length`.
        val: Share of the characters for validation.
        test: Share of the characters for test.
        max_chars: Read no more than this many characters; None reads all.
        vocabulary: That of the model to adapt.
    """
    return Text(
        context_length=context_length,
        stride=stride,
        val=val,
        test=test,
        max_chars=max_chars,
        vocabulary=vocabulary,
        texts=without_repetitions(topics),
    )


def without_repetitions(texts: dict[str, str]) -> dict[str, str]:
    """Texts without the paragraphs that stood in an earlier one; white space makes no difference."""
    seen: set[str] = set()
    kept = {}
    for name in sorted(texts):
        new = []
        for paragraph in texts[name].split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                new.append(paragraph)
        kept[name] = "\n\n".join([*new, ""])
    return {name: text for name, text in kept.items() if text}
