"""Readers of new inputs, which a run names by their kind."""

from __future__ import annotations

import pytest

from lightkit.common.doors import import_path
from lightkit.data.preprocessing import READERS


@pytest.mark.parametrize("kind", READERS)
def test_a_reader_is_found_by_the_kind_that_it_writes(kind):
    assert import_path(READERS[kind]).kind == kind
