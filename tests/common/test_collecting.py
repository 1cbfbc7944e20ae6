"""The pause of Python's search for cycles: on again afterwards, and what many modules bring is left out of it."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from lightkit.common.collecting import importing, uncollected


def test_a_pause_leaves_the_switch_as_it_was():
    for then, switch in ((False, gc.disable), (True, gc.enable)):
        switch()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is then


def test_pauses_of_two_threads_that_overlap_end_with_the_last():
    first, second = uncollected(), uncollected()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


@pytest.mark.parametrize(("count", "expected"), [(3, []), (200, [False])])
def test_many_modules_are_left_out_before_the_search_is_on_again(monkeypatch, count, expected):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with importing():
        for number in range(count):
            monkeypatch.setitem(sys.modules, f"made_{number}", ModuleType(f"made_{number}"))
    assert frozen == expected
    assert gc.isenabled()


def test_a_failed_import_freezes_nothing(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("frozen"))
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()
