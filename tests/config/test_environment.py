from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from lightkit.common.secrets import forget, without_secrets
from lightkit.config.tree import watch_environment


def test_what_a_configuration_reads_is_noted_and_no_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watch_environment()
    forget()
    monkeypatch.setenv("LK_TOKEN", "hunter2-0b5f3a")
    monkeypatch.delenv("LK_NONE", raising=False)
    cfg = OmegaConf.create(
        {"a": "${oc.env:LK_TOKEN}", "b": "${oc.env:LK_NONE,by-default}", "c": "${oc.env:LK_NONE}", "d": "x${.a}"}
    )
    assert without_secrets("hunter2-0b5f3a") == "hunter2-0b5f3a"
    assert (cfg.d, cfg.b) == ("xhunter2-0b5f3a", "by-default")
    assert without_secrets("hunter2-0b5f3a, by-default") == "${oc.env:LK_TOKEN}, by-default"
    with pytest.raises(InterpolationResolutionError, match="LK_NONE"):
        _ = cfg.c
    forget()
