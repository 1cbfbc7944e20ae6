"""How a key and what is said about it stand in a file of `conf/`; that the files are up to date is in test_conf."""

from __future__ import annotations

import yaml

from lightkit.config.pages import PAGES, commented, page


def test_a_long_comment_goes_on_below_itself() -> None:
    text = commented("lr: 0.1", "of " * 40, column=10)
    first, second = text.splitlines()
    assert first.startswith("lr: 0.1   # of of")
    assert second.startswith("          # of")
    assert len(first) <= 120
    assert commented("_target_: a.B", "", column=10) == "_target_: a.B"


def test_a_page_says_something_about_every_key() -> None:
    for name in PAGES:
        lines = page(name).splitlines()
        assert all("#" in line or line.strip().startswith("_target_:") for line in lines), name
        assert yaml.safe_load(page(name)), name
