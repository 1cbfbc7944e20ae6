"""What an error says, in pieces: `data.root: there is no such folder … received`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightkit.common.errors import UserError


def refused(make: Callable[[], Any], text: str) -> UserError:
    """Check that an error holds each of the pieces between ` … `, and return it."""
    with pytest.raises(UserError) as caught:
        make()
    assert not [piece for piece in text.split(" … ") if piece not in str(caught.value)], str(caught.value)
    return caught.value
