"""What is damaged, foreign or forged in the folders of runs, and what mending leaves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.runs.lock import locked
from tests.conftest import Outcome
from tests.runs.damaging import ENSEMBLE, OTHER, RUN, SWEEP, make_project

Cli = Callable[..., Outcome]


@pytest.fixture
def runs(project: Path, cli: Cli) -> Path:
    """A project with runs, an ensemble and a sweep, all of them whole, and an index of them."""
    make_project(project)  # here, as the place of a run is signed with it
    for path in project.rglob(".progress.json"):
        path.unlink()
    (project / "outputs" / ".index.json").unlink()
    cli("runs")
    return project


def _findings(done: Outcome) -> list[tuple[str, str, str]]:
    found: list[dict[str, Any]] = json.loads(done.out)["findings"]
    return [(each["check"], each["status"], each["measured"]) for each in found if each["status"] != "ok"]


def test_whole_runs_are_left_alone(runs: Path, cli: Cli) -> None:
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    done = cli("doctor", "outputs/", "--mend")
    assert done.code == 0
    assert "8 of 8 runs and sweeps are whole and signed by you" in done.out
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_what_is_damaged_is_named_and_mended(runs: Path, cli: Cli) -> None:
    result, journal, metrics = runs / RUN / "result.json", runs / SWEEP / "sweep.jsonl", runs / RUN / "metrics.jsonl"
    odd = json.dumps({"status": "finished", "metrics": [1], "epochs": 3})
    result.write_text(odd)
    (runs / OTHER / "result.json").write_bytes(b"\0" * 10)
    whole = journal.read_text()
    journal.write_text(f'{whole}{{"event": "start')
    rows = metrics.read_text()
    metrics.write_text("{\n" + rows)
    (runs / ENSEMBLE / ".progress.json").write_text("{}")
    (runs / "outputs" / ".index.json").write_text("{")
    named = cli("doctor", "outputs", "--json")
    assert named.code == 1
    assert _findings(named) == [
        ("damaged", "error", f"{OTHER}/result.json: only zeros, as after a power cut"),
        ("damaged", "error", f"{RUN}/result.json: `metrics` is not an object"),
        ("damaged", "error", f"{RUN}/metrics.jsonl: line 1: not JSON: Expecting property name enclosed in double "
         "quotes at line 2, column 1"),
        ("left over", "note", f"{ENSEMBLE}/.progress.json says something of a process that is gone"),
        ("damaged", "note", f"{SWEEP}/sweep.jsonl: line {whole.count(chr(10)) + 1}: torn at its end"),
        ("damaged", "warning", f"{runs}/outputs/.index.json: damaged"),
    ]  # fmt: skip
    assert result.read_text() == odd
    mended = cli("doctor", "outputs", "--mend", "--json")
    assert mended.code == 0
    assert [check for check, _, _ in _findings(mended)] == ["mended"] * 3 + ["left over"] + ["mended"] * 2
    assert json.loads(result.read_text()) == {"status": "finished", "epochs": 3}
    assert (runs / RUN / "result.json.damaged1").read_text() == odd
    assert not (runs / OTHER / "result.json").exists()
    assert (runs / OTHER / "result.json.damaged1").read_bytes() == b"\0" * 10
    assert (journal.read_text(), metrics.read_text()) == (whole, rows)
    assert (runs / SWEEP / "sweep.jsonl.damaged1").read_text().endswith('"start')
    assert not _findings(cli("doctor", "outputs", "--json"))


def test_a_folder_in_the_place_of_a_file_is_put_aside(runs: Path, cli: Cli) -> None:
    (runs / RUN / "result.json").unlink()
    (runs / RUN / "result.json").mkdir()
    (runs / RUN / "environment.json").unlink()
    os.mkfifo(runs / RUN / "environment.json")
    assert cli("doctor", RUN, "--mend").code == 0
    assert (runs / RUN / "result.json.damaged1").is_dir()
    assert not (runs / RUN / "environment.json").exists()
    assert not _findings(cli("doctor", "outputs", "--json"))


def test_a_run_says_what_of_it_is_damaged_and_nothing_is_mended_where_a_process_works(runs: Path, cli: Cli) -> None:
    (runs / RUN / "result.json").write_text("{")
    done = cli("doctor", RUN)
    assert done.code == 1
    assert "result.json: not JSON" in " ".join(done.out.split())
    assert "--mend" in done.out
    with locked(runs / RUN):
        found = _findings(cli("doctor", "outputs", "--mend", "--json"))
    assert [status for _, status, _ in found] == ["skipped", "error"]
    assert found[0][2].startswith(f"{RUN} is left as it is: process ")
    assert (runs / RUN / "result.json").read_text() == "{"


def test_what_came_from_elsewhere_and_what_was_changed_is_named(runs: Path, cli: Cli) -> None:
    config = runs / RUN / "config.yaml"
    config.write_text(config.read_text() + "trust: [evil]\n")
    (runs / OTHER / ".mark").unlink()
    (runs / ENSEMBLE / "figures").symlink_to("/")
    journal = runs / SWEEP / "sweep.jsonl"
    journal.write_text(journal.read_text().replace('"config": "name: lr=1', '"config": "name: lr=3', 1))
    done = cli("doctor", "outputs", "--json")
    assert done.code == 0
    assert _findings(done) == [
        ("foreign", "note", f"{OTHER} is not signed by you"),
        ("forged", "warning", f"{RUN}/config.yaml is not what was signed"),
        (
            "forged",
            "warning",
            f"{ENSEMBLE}/figures: this link leads out of the folder of the run, so nothing is written",
        ),
        ("foreign", "note", f"{SWEEP}: 1 of 2 planned jobs are not signed by you, such as lr=1"),
    ]
    assert cli("doctor", "outputs", "--strict").code == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_another_user_owns_is_named(runs: Path, cli: Cli) -> None:
    os.chown(runs / RUN, 12345, 12345)
    found = _findings(cli("doctor", "outputs", "--json"))
    assert found == [("foreign", "warning", f"{RUN} belongs to another user")]


def test_only_what_is_there_can_be_mended(runs: Path, cli: Cli) -> None:
    for words in (("--mend",), ("data=wine", "--mend")):
        done = cli("doctor", *words)
        assert done.code == 2
        assert "lightkit doctor outputs/ --mend" in done.err
    shutil.rmtree(runs / "outputs")
    assert cli("doctor", "nothing", "--mend").code == 2
