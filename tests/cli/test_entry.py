from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli import entry, main
from lightkit.cli.arguments import COMMANDS
from lightkit.common.errors import UserError
from tests.compare.made import a_sweep
from tests.conftest import ROOT


def raising(error: BaseException) -> Callable[[str], Callable[[list[str]], int]]:
    """A stand-in for the import of a command, which raises."""

    def command(_args: list[str]) -> int:
        raise error

    return lambda _path: command


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert "LIGHTKIT_DEBUG=1" in out
    assert main([]) == 0
    assert capsys.readouterr().out == out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lightkit 0.")


def test_every_command_has_help_with_usage_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: lightkit {command}")
        assert f"examples:\n  lightkit {command}" in out
        assert max(map(len, out.splitlines())) <= 120
        assert main(["help", command]) == 0
        assert capsys.readouterr().out == out


def test_nothing_is_imported_that_is_not_needed(project: Path) -> None:
    """Help needs nothing but Python; what only reads and composes needs no PyTorch; a run needs no other metrics."""
    a_sweep(project, {0.1: [0.5, 0.75, 0.7], 0.01: [0.25, 0.5, 0.6]})
    code = f"""
import gc, sys
from lightkit.cli import main

def check(args, *names):
    main(args)
    assert not {{*names}} & {{*sys.modules}}, (args, {{*names}} & {{*sys.modules}})

light = ("torch", "hydra", "omegaconf", "yaml", "numpy", "rich", "torchinfo")
for args in (["--help"], ["--version"], ["help", "train"], *([name, "-h"] for name in {[*COMMANDS]}), ["doctor", "-h"]):
    check(args, *light)
check(["gpus", "--json"], "torch", "numpy")
for args in (["train", "--cfg", "job"], ["train", "optim.lrr=1"], ["config"], ["config", "optim"], ["runs"],
             ["train", "-m", "optim.lrr=1,2"], ["train", "--cfg", "hydra"], ["runs", "--sort", "val/accuracy"],
             ["compare", "--where", "optim.lr=0.1"]):
    check(args, "torch", "torchmetrics", "numpy", "lightkit.runner")
check(["compare", "--html", "x.html", "--baseline", "lr=0.1"], "torch")
main(["plan"])
assert gc.get_freeze_count() > 100_000, "no search for cycles goes through what PyTorch made"
main(["train", "data=wine", "trainer.steps=1", "metrics.figures=[]", "device=cpu", "logger=quiet"])
check(["runs"], "torchvision", "transformers", "scipy.signal", "torch._dynamo")
"""
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert (project / "x.html").is_file()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("wrong"), 2),
        (UserError("loss is nan", exit_code=3), 3),
        (UserError("damaged", exit_code=5), 5),
        (MemoryError(), 4),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), 4),
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (SystemExit(None), 0),
        (SystemExit("text"), 1),
        (ZeroDivisionError("a bug"), 1),
    ],
)
def test_exit_status(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "import_path", raising(error))
    assert main(["runs"]) == code


def test_user_errors_show_no_traceback_and_bugs_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "import_path", raising(UserError("no such key", key="a.b")))
    monkeypatch.delenv("LIGHTKIT_DEBUG", raising=False)
    main(["runs"])
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: a.b: no such key\nmore: lightkit explain LK102\n")
    monkeypatch.setenv("LIGHTKIT_DEBUG", "1")
    assert main(["runs"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("\nmore: lightkit explain LK102\n")
    monkeypatch.setattr(entry, "import_path", raising(ZeroDivisionError("a bug")))
    monkeypatch.delenv("LIGHTKIT_DEBUG")
    main(["runs"])
    err = capsys.readouterr().err
    assert ("Traceback" in err, "a bug" in err) == (True, True)


def test_closed_pipe_is_quiet() -> None:
    code = (
        "import os, sys; from lightkit.cli import main; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
        "sys.exit(main(['--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
    info = code.replace("--help", "train', '--info', 'defaults")
    done = subprocess.run([sys.executable, "-c", info], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_public_names_are_lazy() -> None:
    code = (
        "import sys, lightkit; assert 'torch' not in sys.modules; lightkit.UserError; dir(lightkit); lightkit.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "AttributeError: module 'lightkit' has no attribute 'nothing'" in done.stderr


def test_internal_options_are_not_advertised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--jobb", "x"]) == 2
    err = capsys.readouterr().err
    assert "no such option" in err
    assert "--job" not in err.partition("choices")[2]
    assert "shell_completion" not in err


def test_the_help_of_train_and_the_manual_list_the_same_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "reference" / "exit-status.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, +n]+) \|", page, flags=re.MULTILINE)
    there = [status.replace(" ", "") for row in rows for status in row.split(", ")]
    assert main(["train", "--help"]) == 0
    _, _, told = capsys.readouterr().out.partition("Exit status: ")
    without_remarks = re.sub(r"\([^)]*\)", "", told.replace("\n", " "))
    assert [item.split()[0] for item in without_remarks.split(", ")] == there
    assert there[:7] == list("0123456")
