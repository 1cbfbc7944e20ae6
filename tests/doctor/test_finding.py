from __future__ import annotations

import json

import pytest

from lightkit.doctor.finding import STATUSES, Finding, Status


@pytest.mark.parametrize(("status", "bad"), [("error", True), ("warning", True), ("note", False), ("ok", False)])
def test_what_asks_for_something_is_bad(status: Status, bad: bool) -> None:
    assert status in STATUSES
    assert Finding("initial loss", status, "it is 2.31").is_bad is bad


def test_as_plain_values() -> None:
    found = Finding("initial loss", "warning", "it is 6.9", key="model", numbers={"loss": 6.9})
    assert json.loads(json.dumps(found.to_json()))["numbers"] == {"loss": 6.9}
