from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli import completion as module
from lightkit.cli.arguments import COMMANDS
from lightkit.cli.completion import answer
from lightkit.runs.lock import locked
from tests.conftest import Outcome

Cli = Callable[..., Outcome]


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
        ("lightkit resume di", ["digits_cnn"]),
        ("lightkit ckpt inspect l", ["last"]),
        ("lightkit ckpt in", ["inspect"]),
        ("lightkit train --from wi", ["wine_mlp"]),
        ("lightkit train --cfg ", ["all", "hydra", "job"]),
        ("lightkit predict last --split t", ["test", "train"]),
        ("lightkit doctor di", ["digits_cnn"]),
        ("lightkit doctor optim=adag", ["optim=adagrad"]),
        ("lightkit runs --l", ["--limit"]),
        ("lightkit train --de", ["--detach"]),
        ("lightkit resume --all", ["--all-lost"]),
        ("lightkit resume -d di", ["digits_cnn"]),
        ("lightkit runs --status f", ["failed", "finished"]),
        ("lightkit gpus --query fa", ["fan_percent"]),
        ("lightkit logs ", ["digits_cnn", "last", "wine_mlp"]),
        ("lightkit stop wi", ["wine_mlp"]),
        ("lightkit wait wine_mlp di", ["digits_cnn"]),
        ("lightkit ps --w", ["--watch"]),
        ("lightkit gpus --explain thr", ["throttle"]),
        ("lightkit compare wine_mlp di", ["digits_cnn"]),
        ("lightkit compare --baseline wi", ["wine_mlp"]),
        ("lightkit compare --rows v", ["val"]),
        ("lightkit train optim=ada", ["optim=adagrad", "optim=adam", "optim=adamw"]),
        ("lightkit train -m data=wine trainer.epo", ["trainer.epochs="]),
        ("lightkit eval last data.eval_", ["data.eval_batch_size="]),
        ("lightkit help boa", ["board"]),
        ("lightkit summary --from wi", ["wine_mlp"]),
        ("lightkit graph data=wine model=trans", ["model=transformer", "model=transformer_lm"]),
        ("lightkit graph --direction ", ["LR", "TB"]),
        ("lightkit params di", ["digits_cnn"]),
        ("lightkit params last --checkpoint b", ["best"]),
        ("lightkit board di", ["digits_cnn"]),
        ("lightkit new birds --from ti", ["timm"]),
        ("lightkit new birds --f", ["--from"]),
        ("lightkit board --st", ["--stop"]),
        ("lightkit find ", ["batch", "lr", "workers"]),
        ("lightkit find lr data=wine trainer.epo", ["trainer.epochs="]),
        ("lightkit find lr --from wi", ["wine_mlp"]),
        ("lightkit find workers --t", ["--try"]),
        ("lightkit show ", ["data", "results", "worst"]),
        ("lightkit show data data=wi", ["data=wine"]),
        ("lightkit show data --ep", ["--epoch"]),
        ("lightkit sweep ", ["resume", "status", "stop"]),
        ("lightkit sweep status last --wat", ["--watch"]),
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


@pytest.mark.parametrize("command", [[], ["train"]], ids=["lightkit", "train"])
def test_a_shell_asks_with_its_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setenv("COMP_LINE", "lightkit train optim=ad")
    assert {"optim=adam", "optim=adamw"} <= set(cli(*command, "-sc", "query=bash").out.split())


def test_a_broken_project_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "project", fail)
    assert answer("lightkit eval ") == []


def test_every_shell_gets_its_script(cli: Cli) -> None:
    assert "COMPREPLY" in cli("-sc", "install=bash").out
    assert "complete -c" in cli("train", "-sc", "install=fish").out
