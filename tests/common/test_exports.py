"""Public names are imported when they are used, and what is none of them is told as Python does."""

from __future__ import annotations

import pytest

import lightkit
from lightkit.common.exports import exporting


def test_a_name_comes_from_its_module() -> None:
    assert exporting("lightkit", {"UserError": "common.errors"})("UserError") is lightkit.UserError
    with pytest.raises(AttributeError, match="module 'lightkit' has no attribute 'Other'"):
        exporting("lightkit", {})("Other")
