from __future__ import annotations

import pytest

from lightkit.common.names import split_named


@pytest.mark.parametrize(
    ("name", "split"), [("Valid", "val"), (" dev ", "val"), ("TRAINING", "train"), ("x", None), (1, None)]
)
def test_a_split_is_known_by_several_names(name: object, split: str | None) -> None:
    assert split_named(name) == split
