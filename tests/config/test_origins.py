from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from lightkit.common.text import forget, without_secrets
from lightkit.config.origins import Sources, dotted, nodes, parts_of, shown


def test_keys_there_and_back() -> None:
    for text in ("a", "a.b", "a.b[0].c", "a[1][2]", "metrics.val.f1"):
        assert dotted(parts_of(text)) == text


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\nb:\n  c: {d: 2,\n      e: 3}\n  f:\n  - 1\n  - g: 4\nb2: 0\n")
    sources = Sources([(path, "")])
    for key, line in (("a", 1), ("b", 2), ("b.c.d", 3), ("b.c.e", 4), ("b.f[1]", 7), ("b.f[1].g", 7), ("b2", 8)):
        assert sources.exact(parts_of(key)) == f"{path}:{line}"
    assert sources.exact(("b", "nope")) is None
    assert sources.exact(("b", "f", 9)) is None


def test_the_strongest_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weak, strong = tmp_path / "weak.yaml", tmp_path / "strong.yaml"
    weak.write_text("lr: 1\nmomentum: 2\n")
    strong.write_text("optim:\n  lr: 3\n")
    sources = Sources([(weak, "optim"), (strong, "")], [("optim.eps", "optim.eps=1"), ("extra", "extra={a: 1}")])
    assert sources.find("optim.lr") == "strong.yaml:2"
    assert sources.find("optim.momentum") == "weak.yaml:2"
    assert sources.find("optim.eps") == "command line: optim.eps=1"
    assert sources.find("extra.a") == "command line: extra={a: 1}"
    assert sources.find("optim.missing") == "strong.yaml:1"
    assert sources.find("nothing") is None


def test_a_node_comes_from_what_is_typed_below_it(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("lr: 1\n")
    typed = [("modle.hidden", "modle.hidden=[3]"), ("optim.lrr.x", "optim.lrr.x=1"), ("optim.lr", "optim.lr=2")]
    sources = Sources([(file, "optim")], typed)
    assert sources.find("modle") == "command line: modle.hidden=[3]"
    assert sources.find("optim.lrr") == "command line: optim.lrr.x=1"
    assert sources.find("optim") == "command line: optim.lr=2"
    assert sources.find("optim.eps") == f"{file}:1"
    assert sources.find("modle._target_") == "command line: modle.hidden=[3]"


def test_unreadable_files_have_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("a: [")
    assert nodes(path) is None
    assert nodes(tmp_path / "none.yaml") is None


def test_paths_are_relative_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "conf/a.yaml") == "conf/a.yaml"
    assert shown(tmp_path.parent / "a.yaml") == str(tmp_path.parent / "a.yaml")


def test_what_a_configuration_reads_is_noted_and_no_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    importlib.import_module("lightkit.config.tree")  # which watches
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
