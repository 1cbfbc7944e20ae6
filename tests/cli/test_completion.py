from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.cli.arguments import COMMANDS
from lightkit.cli.completion import answer
from lightkit.runs.lock import locked
from tests.conftest import Cli


@pytest.fixture(autouse=True)
def clean(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project of its own with two runs, and a variable that Hydra may set."""
    monkeypatch.setenv("COMP_LINE", "")
    for name in ("10-00-00-wine_mlp", "11-00-00-digits_cnn"):
        folder = project / "outputs" / "runs" / "2026-01-31" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("name: run\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lightkit ev", ["eval"]),
        ("lightkit eval ", ["digits_cnn", "last", "wine_mlp"]),
        ("lightkit ckpt inspect l", ["last"]),
        ("lightkit train --from wi", ["wine_mlp"]),
        ("lightkit train --cfg ", ["all", "hydra", "job"]),
        ("lightkit predict last --split t", ["test", "train"]),
        ("lightkit doctor di", ["digits_cnn"]),
        ("lightkit resume --all", ["--all-lost"]),
        ("lightkit resume -d di", ["digits_cnn"]),
        ("lightkit runs --status f", ["failed", "finished"]),
        ("lightkit gpus --query fa", ["fan_percent"]),
        ("lightkit logs ", ["digits_cnn", "last", "wine_mlp"]),
        ("lightkit stop wi", ["wine_mlp"]),
        ("lightkit wait wine_mlp di", ["digits_cnn"]),
        ("lightkit compare wine_mlp di", ["digits_cnn"]),
        ("lightkit compare --baseline wi", ["wine_mlp"]),
        ("lightkit train optim=adag", ["optim=adagrad"]),
        ("lightkit train -m data=wine trainer.epochs", ["trainer.epochs="]),
        ("lightkit help boa", ["board"]),
        ("lightkit graph data=wine model=trans", ["model=transformer", "model=transformer_lm"]),
        ("lightkit graph --direction ", ["LR", "TB"]),
        ("lightkit params last --checkpoint b", ["best"]),
        ("lightkit board di", ["digits_cnn"]),
        ("lightkit new birds --from ti", ["timm"]),
        ("lightkit find ", ["batch", "lr", "rows", "workers"]),
        ("lightkit show ", ["attributions", "data", "importance", "results", "worst"]),
        ("lightkit show data data=wi", ["data=wine"]),
        ("lightkit sweep ", ["resume", "status", "stop"]),
        ("lightkit explain no-such", ["no-such-device", "no-such-run"]),
    ],
)
def test_what_the_last_word_may_become(line: str, expected: list[str]) -> None:
    assert answer(line) == expected


def test_commands_and_groups() -> None:
    assert set(COMMANDS) <= set(answer("lightkit "))
    assert "optim" in answer("lightkit config op")
    assert "--job" not in answer("lightkit train --")


def test_what_is_alive_is_what_can_be_stopped(project: Path) -> None:
    with locked(project / "outputs" / "runs" / "2026-01-31" / "10-00-00-wine_mlp"):
        assert answer("lightkit stop ") == ["last", "wine_mlp"]
        assert answer("lightkit attach ") == ["last", "wine_mlp"]
        assert answer("lightkit logs ") == ["digits_cnn", "last", "wine_mlp"]


@pytest.mark.parametrize("line", ["", "lightkit nothing ", "lightkit train nonsense=1 se", "lightkit train 'a=[ b"])
def test_nothing_is_said_about_what_is_wrong(cli: Cli, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    done = cli("-sc", "query=bash")
    assert (done.code, done.err) == (0, "")


def test_a_shell_asks_with_its_line_and_gets_its_script(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ([], ["train"]):
        monkeypatch.setenv("COMP_LINE", "lightkit train optim=ad")  # which Hydra is told by, too
        assert {"optim=adam", "optim=adamw"} <= set(cli(*command, "-sc", "query=bash").out.split())
    assert "COMPREPLY" in cli("-sc", "install=bash").out
    assert "complete -c" in cli("train", "-sc", "install=fish").out
    assert cli("train", "-sc", "install=fish", "--help").out.startswith("usage: lightkit train")


def test_completing_imports_nothing_that_checks_or_trains(project: Path) -> None:
    code = (
        "import os, sys; sys.argv[1:] = ['train', '-sc', 'query=bash']; from lightkit.cli import main; end = os._exit;"
        "os._exit = lambda _: end(3 * bool({'lightkit.config.check', 'lightkit.cli.train'} & {*sys.modules}));"
        "main()"
    )
    line = {**os.environ, "COMP_LINE": "lightkit train optim.l"}
    done = subprocess.run([sys.executable, "-c", code], env=line, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["optim.layer_decay=", "optim.lr="]
