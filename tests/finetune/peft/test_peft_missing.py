"""What is said where peft is not installed."""

from __future__ import annotations

import importlib

import pytest
from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.peft_bridge import inject_peft


def test_peft_is_missing(monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    message = r"^peft: peft cannot be imported: No module named 'peft'\n.*pip install 'lightkit\[peft\]'"
    with pytest.raises(UserError, match=message):
        inject_peft(nn.Linear(2, 2), object())
