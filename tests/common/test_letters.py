from __future__ import annotations

import pytest

from lightkit.common.letters import look_alike, plain_letters


@pytest.mark.parametrize(
    ("text", "plain", "said"),
    [
        ("\u043eptim.lr", "optim.lr", "'\u043e' is CYRILLIC SMALL LETTER O, not 'o'"),
        ("\u22120.1", "-0.1", "'\u2212' is MINUS SIGN, not '-'"),
        ("\uff4cr", "lr", "'\uff4c' is FULLWIDTH LATIN SMALL LETTER L, not 'l'"),
        ("\u201cwine\u201d", '"wine"', "'\u201c' is LEFT DOUBLE QUOTATION MARK, not '\"'"),
        ("\u03bfne", "one", "'\u03bf' is GREEK SMALL LETTER OMICRON, not 'o'"),
        ("plain-text", "plain-text", None),
        ("\u00dcberlauf", "\u00dcberlauf", None),
        ("\u043e\u043f\u044b\u0442", "o\u043f\u044b\u0442", None),
    ],
)
def test_letters_that_only_look_like_ascii_are_named(text: str, plain: str, said: str | None) -> None:
    assert plain_letters(text) == plain
    assert look_alike(text) == said
