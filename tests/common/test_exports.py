"""Public names are imported when they are used, and what is none of them is told as Python does."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import lightkit
from lightkit.common.exports import exporting


def test_a_name_comes_from_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightkit", package := ModuleType("lightkit"))
    find = exporting("lightkit", {"UserError": "common.errors"})
    assert find("UserError") is lightkit.UserError
    assert {"UserError", "__name__"} <= {*dir(package)}
    with pytest.raises(AttributeError, match="module 'lightkit' has no attribute 'Other'"):
        find("Other")


def test_packages_list_their_names_and_can_be_sent_to_another_process() -> None:
    look = "import lightkit.config as it, lightkit.data as data; print({*it.__all__} <= {*dir(it)})"
    again = "import pickle; print(pickle.loads(pickle.dumps(it)) is it, 'TensorData' in dir(data))"
    told = subprocess.run([sys.executable, "-c", f"{look}; {again}"], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["True", "True", "True"]
