from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli.inspected import FORMATS
from lightkit.diagnostics import graph
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
pytest.importorskip("torchview")


def test_a_picture(cli: Cli, project: Path) -> None:
    done = cli("graph", "data=wine", "model.hidden=[8]", "--output", "model.dot")
    assert (done.code, done.out) == (0, "7 boxes, 2 levels of layers: model.dot\n"), done.err
    assert "layers.linear0" in (project / "model.dot").read_text()
    assert not (project / "outputs").exists()


def test_levels_direction_and_shape(cli: Cli, project: Path) -> None:
    args = ("--depth", "1", "--direction", "lr", "--input", "1,16,16", "--output", "model.dot")
    done = cli("graph", "data=digits", "model=cnn", *args)
    assert done.code == 0, done.err
    text = (project / "model.dot").read_text()
    assert "rankdir=LR" in text
    assert "(1, 1, 16, 16)" in text
    assert "conv0" not in text


def test_without_graphviz(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    done = cli("graph", "data=wine")
    assert done.code == 2
    assert "Graphviz, which draws the picture, is not installed on this machine" in done.err
    assert "apt install graphviz" in done.err
    assert "--output model.dot" in done.err
    assert not (project / "model.svg").exists()


def test_the_command_knows_what_can_be_written() -> None:
    assert FORMATS == graph.FORMATS
