"""Values from the environment in messages; through commands they are in tests/cli/test_secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.common.text import forget, remember, visible, without_secrets


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.mark.parametrize(
    "shown",
    [
        "no such file: {}",
        "no such file: /home/ada/{}/x.csv",
        "https://user:{}@host",
        "'{}'",
        "{}",
        "received: 'x_{}_y', and Bearer{}2",
    ],
)
@pytest.mark.parametrize("value", ["hunter2-0b5f3a", "with 'quotes' and \\", "é$(x)"])
def test_a_value_is_shown_as_it_stands_in_the_configuration(value: str, shown: str) -> None:
    remember("TOKEN", value)
    for form in (value, repr(value)[1:-1]):
        assert without_secrets(shown.replace("{}", form)) == shown.replace("{}", "${oc.env:TOKEN}")
    assert value not in str(UserError("wrong", key="data.path", received=f"pre{value}post", fix=f"rm {value}"))
    assert value not in visible(shown.replace("{}", value))
    forget()
    assert without_secrets(value) == value


def test_numbers_short_words_folders_and_parts_of_words_are_left(tmp_path: Path) -> None:
    for value in ("3", "0.001", "20260131", "cuda", "", str(tmp_path)):
        remember("A", value)
        assert without_secrets(f"a {value} b") == f"a {value} b"
    remember("A", "rates")
    assert without_secrets("celebrates rates: x_rates_y") == "celebrates ${oc.env:A}: x_${oc.env:A}_y"


def test_the_folders_of_a_path_that_is_not_there_are_a_part_of_it(tmp_path: Path) -> None:
    remember("A", f"{tmp_path}/hunter2-0b5f3a/x.csv")
    assert without_secrets(f"there is no folder {tmp_path}/hunter2-0b5f3a") == "there is no folder ${oc.env:A}"
