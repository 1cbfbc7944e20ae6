"""`lightkit doctor`: what it examines, what it prints, and what it leaves behind."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkit.doctor import checks
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding
from tests.conftest import Cli

TRACE = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x400 and 784x10)\n"
FEW = (("gradients", "lightkit.doctor.training.flow:check_gradients"), ("own", f"{__name__}:own"))


def own(run: ExaminedRun) -> Iterator[Finding]:
    """A check that leaves a file in the run's folder, and finds what the name of the run says."""
    (run.folder / "left").write_text("x")
    if run.cfg.name == "broken":
        raise ZeroDivisionError
    status = run.cfg.name if run.cfg.name in ("error", "warning", "note", "skipped") else "ok"
    yield Finding("own", status, "measured", "why", "model", "mend it")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two checks only, and a folder for temporary files."""
    monkeypatch.setattr(checks, "CHECKS", FEW)
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # PyTorch's own, which the first import makes
    monkeypatch.setattr(sys, "stdin", None)
    return place


def test_the_run_that_train_would_start_is_examined_and_nothing_is_left(cli: Cli, project: Path, few: Path) -> None:
    done = cli("doctor", "data=wine", "model.hidden=[8]")

    assert done.code == 0, done.err
    assert done.out.startswith("wine_mlp: MLP with AdamW on cpu")
    assert "ok      gradients           each of the 6 tensors that train gets one" in done.out
    assert done.out.splitlines()[-1].startswith("2 ok in ")
    assert [*project.rglob("*")] == [project / "experiments"]
    assert [*few.iterdir()] == []


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [("error", "", 1), ("warning", "", 0), ("warning", "--strict", 1), ("note", "--strict", 0), ("broken", "", 0)],
)
def test_the_status_says_whether_an_error_was_found(cli: Cli, few: Path, name: str, options: str, code: int) -> None:
    done = cli("doctor", "data=wine", f"name={name}", *options.split(), "--json")
    assert done.code == code, done.out
    findings = json.loads(done.out)["findings"]
    assert [(each["check"], each["status"]) for each in findings] == [
        ("gradients", "ok"), ("own", "note" if name == "broken" else name)
    ]  # fmt: skip
    assert ("ZeroDivisionError" in findings[1]["measured"]) == (name == "broken")


def test_checks_end_where_the_time_does(cli: Cli, few: Path) -> None:
    done = cli("doctor", "data=wine", "--seconds", "0.001", "--json")
    measured = [each["measured"] for each in json.loads(done.out)["findings"]]
    assert measured == ["no time was left for it"] * 2 + ["there was none for 2 of 2 checks"]
    assert done.code == 1


def test_a_traceback_as_windows_writes_it(cli: Cli, project: Path) -> None:
    (project / "trace.txt").write_text(TRACE, encoding="utf-16")
    done = cli("doctor", "trace.txt")
    assert (done.code, "a linear layer takes 784 numbers" in done.out) == (0, True)


def test_an_empty_file_is_no_run_to_examine(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "empty.txt").touch()
    with (project / "empty.txt").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        done = cli("doctor")
    assert (done.code, done.out) == (1, "no traceback and no known error in this text\n")


def test_an_unknown_error_has_a_status_of_its_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("ValueError: nobody knows\n"))
    done = cli("doctor", "-", "--json")
    assert (done.code, json.loads(done.out)["message"]) == (1, "ValueError: nobody knows")


def test_no_heading_stands_above_nothing(cli: Cli, few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", (("machine", f"{__name__}:own"), ("baselines", f"{__name__}:own")))
    assert "\n\nwhat is learnt\n" in cli("doctor", "data=wine").out
    assert "fix:      mend it" in cli("doctor", "data=wine", "name=error").out
    assert "what is learnt" not in cli("doctor", "data=wine", "name=skipped").out
