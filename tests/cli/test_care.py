"""Tags, notes, the bin, sizes and archives of runs, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit.runs.lock import locked
from tests.conftest import Cli

DAY = "outputs/runs/2026-01-31"


def a_run(project: Path, name: str, text: str = "", place: str = DAY) -> Path:
    folder = project / place / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(f"name: {name}\ndata: {{}}\nmodel: {{}}\n{text}")
    (folder / "result.json").write_text(json.dumps({"status": "finished"}))
    (folder / "checkpoints" / "step-00000001.pt").write_bytes(bytes(5000))
    return folder


@pytest.fixture
def runs(project: Path) -> list[Path]:
    return [a_run(project, f"0{hour}-00-00-{name}") for hour, name in enumerate(("a", "b", "c"))]


def names(cli: Cli, *conditions: str) -> list[str]:
    rows = json.loads(cli("runs", "--json", *conditions).out)
    return [row["name"] for row in rows]


def test_tags_and_notes_are_shown_found_and_taken_away(cli: Cli, runs: list[Path]) -> None:
    assert cli("runs", "tag", "paper", "a", "c").out == "paper given to 2 runs\n"
    assert cli("runs", "tag", "best", "c").code == 0
    assert names(cli, "--where", "tags=paper") == ["a", "c"]
    assert names(cli, "--where", "tags!=paper") == ["b"]
    assert "best" in cli("runs").out
    assert "tags" not in cli("runs", "--where", "name=b").out.splitlines()[0]
    assert cli("runs", "note", "b", "lost the seed").code == 0
    assert names(cli, "--where", "note~*seed*") == ["b"]
    assert cli("runs", "tag", "nothing", "a", "--remove").out == "nothing taken from 0 runs\n"
    assert cli("runs", "tag", "paper", "--where", "tags=paper", "--remove").out == "paper taken from 2 runs\n"
    assert json.loads((runs[2] / "labels.json").read_text()) == {"tags": ["best"]}


@pytest.mark.parametrize("name", ["a,b", "a b", "=x", "../a", "\x1b[2J", ""])
def test_what_is_no_tag_is_refused(cli: Cli, runs: list[Path], name: str) -> None:
    done = cli("runs", "tag", name, "a")
    assert (done.code, "not a tag" in done.err, "\x1b" in done.err) == (2, True, False)
    assert not (runs[0] / "labels.json").exists()


def test_damaged_labels_are_told(cli: Cli, runs: list[Path]) -> None:
    (runs[0] / "labels.json").write_text('{"tags": 3}')
    assert "labels.json" in cli("runs").err
    assert cli("runs", "note", "a", "x" * 3000).code == 2


def test_rm_moves_to_the_bin_and_the_bin_can_be_emptied(cli: Cli, runs: list[Path], project: Path) -> None:
    done = cli("runs", "rm", "a")
    assert (done.code, "nobody can be asked here" in done.err, runs[0].exists()) == (2, True, True)
    assert cli("runs", "rm", "--yes", "a", "b").code == 0
    assert names(cli) == ["c"]
    (place,) = (project / "outputs" / ".removed").iterdir()
    assert (place / "runs/2026-01-31/00-00-00-a/checkpoints/step-00000001.pt").is_file()
    assert "KiB are free again" in cli("runs", "rm", "--empty-bin").out
    assert not (project / "outputs" / ".removed").exists()
    assert cli("runs", "rm").code == 2
    assert "no run here" in cli("runs", "rm", "--yes", str(project.parent)).err, "and it is not looked through"
    assert cli("runs", "rm", "--yes", "--status", "failed").code == 2


def test_a_run_whose_checkpoints_are_in_the_bin_may_follow_within_the_same_second(
    cli: Cli, runs: list[Path], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "2026-01-31_12-00-00")
    assert cli("runs", "rm", "--checkpoints", "--yes", "a").code == 0
    done = cli("runs", "rm", "--yes", "a")
    assert (done.code, runs[0].exists()) == (0, False), done.err
    assert len([*(project / "outputs" / ".removed").glob("*/runs/2026-01-31/00-00-00-a")]) == 2


def test_rm_never_takes_what_others_need(cli: Cli, runs: list[Path], project: Path) -> None:
    a_run(project, "05-00-00-tuned", f"finetune: {{weights: {{path: {runs[0]}/checkpoints/step-00000001.pt}}}}\n")
    (a_run(project, "06-00-00-pair") / "ensemble.json").write_text(json.dumps({"members": [{"run": str(runs[1])}]}))
    fold = a_run(project, "fold-0", place=f"{DAY}/02-00-00-c/members")
    with locked(runs[2]):
        done = cli("runs", "rm", "--yes", "a", "b", "c")
    assert done.code == 2
    for line in ("05-00-00-tuned builds on it", "06-00-00-pair builds on it", "02-00-00-c: it runs"):
        assert line in done.err
    assert all(folder.is_dir() for folder in runs)
    assert "a part of" in cli("runs", "rm", "--yes", str(fold)).err
    assert cli("runs", "rm", "--yes", "a", "tuned").code == 0, "both may go together"


def test_jobs_go_with_their_sweep(cli: Cli, project: Path) -> None:
    jobs = [a_run(project, name, place="outputs/sweeps/2026-01-31/00-00-00-s") for name in ("lr=1", "lr=2")]
    (jobs[0].parent / "sweep.jsonl").write_text("")
    assert "a part of" in cli("runs", "rm", "--yes", str(jobs[0])).err
    assert cli("runs", "rm", "--yes", str(jobs[0].parent)).code == 0
    assert not jobs[0].parent.exists()


def test_du_counts_each_file_once(cli: Cli, runs: list[Path]) -> None:
    (runs[1] / "again.pt").hardlink_to(runs[0] / "checkpoints" / "step-00000001.pt")
    found = json.loads(cli("runs", "du", "--json").out)
    sizes = {Path(row["folder"]).name[-1]: row["bytes"] for row in found["runs"]}
    assert sizes["a"] > 5000
    assert sizes["b"] == sizes["a"]
    assert found["bin"] == 0
    assert "in 3 runs" in cli("runs", "du").out


def test_an_archive_travels_and_is_from_elsewhere(cli: Cli, runs: list[Path], project: Path) -> None:
    assert cli("runs", "archive", "x.tar.gz", "a", "c").code == 0
    assert cli("runs", "archive", "x.tar.gz", "a").code == 2
    assert cli("runs", "archive", "x.zip", "a").code == 2
    assert "a run is there" in cli("runs", "import", "x.tar.gz").err
    assert cli("runs", "rm", "--yes", "a", "c").code == 0
    done = cli("runs", "import", "x.tar.gz")
    assert done.out.splitlines() == [f"{DAY}/00-00-00-a", f"{DAY}/02-00-00-c"]
    assert "trust=[PACKAGE]" in done.err
    assert names(cli) == ["a", "b", "c"]
    assert cli("runs", "import", "none.tar").code == 2


def test_checkpoints_go_alone_and_only_where_nobody_needs_them(cli: Cli, runs: list[Path], project: Path) -> None:
    a_run(project, "05-00-00-tuned", f"finetune: {{weights: {{path: {runs[0]}}}}}\n")
    jobs = [a_run(project, name, place="outputs/sweeps/2026-01-31/00-00-00-s") for name in ("lr=1", "lr=2")]
    (jobs[0].parent / "sweep.jsonl").write_text("")
    (jobs[1] / "result.json").write_text('{"status": "paused"}')
    done = cli("runs", "rm", "--checkpoints", "--yes", "a", str(jobs[0].parent))
    assert (done.code, "tuned builds on it" in done.err, "lr=2: a part of" in done.err) == (2, True, True)
    fold = a_run(project, "fold-0", place=f"{DAY}/02-00-00-c/members")
    assert "a part of" in cli("runs", "rm", "--checkpoints", "--yes", str(fold)).err
    done = cli("runs", "rm", "--checkpoints", "--yes", "b", "c", str(jobs[0]))
    assert (done.code, done.out.count("4.9 KiB")) == (0, 4)
    left = {file.parents[1].name for file in project.glob("outputs/[rs]*/**/*.pt")}
    assert left == {"00-00-00-a", "05-00-00-tuned", "lr=2"}
    assert all((folder / "result.json").is_file() for folder in (*runs, *jobs))
    assert "they have no checkpoints" in cli("runs", "rm", "--checkpoints", "--yes", "b").err


def test_a_sweep_travels_with_its_plan(cli: Cli, project: Path) -> None:
    jobs = [a_run(project, name, place="outputs/sweeps/2026-01-31/00-00-00-s") for name in ("lr=1", "lr=2")]
    home = jobs[0].parent
    for name in ("sweep.jsonl", "results.txt", "optuna.journal"):
        (home / name).write_text("{}\n")
    assert cli("runs", "archive", "s.tar", "s").code == 0, "by its name"
    assert cli("runs", "archive", "one.tar", str(jobs[0])).code == 0
    assert cli("runs", "rm", "--yes", "00-00-00-s").code == 0
    assert cli("runs", "import", "s.tar").out == f"{home.relative_to(project)}\n"
    names = {"sweep.jsonl", "results.txt", "optuna.journal", "lr=1", "lr=2"}
    assert {one.name for one in home.iterdir()} == names
    assert "a run is there" in cli("runs", "import", "one.tar").err
    with locked(jobs[0], ".job"):
        assert "it runs" in cli("runs", "rm", "--yes", str(home)).err
        assert "this run goes on" in cli("runs", "archive", "t.tar", str(home)).err


def test_runs_in_folders_of_ones_own_travel_too(cli: Cli, project: Path) -> None:
    here, there = a_run(project, "mine", place="outputs"), a_run(project, "mine", place="outputs/other")
    done = cli("runs", "archive", "x.tar", str(here), str(there))
    assert (done.code, "two runs have the same folder" in done.err) == (2, True), "none is left out unseen"
    assert cli("runs", "archive", "x.tar", str(here)).code == 0
    assert cli("runs", "import", "x.tar").out == "outputs/runs/mine\n"
    (here / "a\nb").touch()
    done = cli("runs", "archive", "y.tar", str(here))
    assert (done.code, "cannot be archived" in done.err, (project / "y.tar").exists()) == (2, True, False)


def test_where_nothing_can_be_unpacked_that_is_told(cli: Cli, runs: list[Path], project: Path) -> None:
    assert cli("runs", "archive", "x.tar", "a").code == 0
    (project / "outputs").rename(project / "elsewhere")
    (project / "outputs").touch()
    done = cli("runs", "import", "x.tar")
    assert (done.code, "cannot be unpacked: " in done.err) == (2, True)
