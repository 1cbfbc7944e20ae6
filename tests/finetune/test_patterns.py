"""All patterns of a fine-tuning, tried on a network at once."""

from __future__ import annotations

import pytest

from lightkit.common.errors import UserErrors
from tests.finetune.preparing import prepared, transformer


def test_every_pattern_that_matches_nothing_is_in_one_report() -> None:
    with pytest.raises(UserErrors) as caught:
        prepared(
            transformer(),
            freeze=["blocks.0", "blokcs.1"],
            train=["haed"],
            schedule=[{"epoch": 1, "unfreeze": ["blocks.7"]}],
            rules=[{"match": "nrom", "lr": 0.1}],
            lora={"match": ["fc9"]},
        )
    keys = [error.key for error in caught.value.errors]
    assert keys == [
        "finetune.freeze",
        "finetune.train",
        "finetune.schedule[0].unfreeze",
        "finetune.rules[0].match",
        "finetune.lora.match",
    ]
