"""Sweeps that somebody else has made: what their journals, links and files reach when they are resumed or stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import multirun
from lightkit.config import compose, to_yaml
from lightkit.config.provenance import sign_run
from lightkit.sweep.job import Job, JobOutcome
from lightkit.sweep.journal import Journal, read_journal
from tests.conftest import Outcome
from tests.sweep.test_controller import Engine

Cli = Callable[..., Outcome]
HALVING = {"rungs": [1], "eta": 2}
SLURM = {"setup": ["touch pwned"], "partition": "x", "options": ["--wrap=touch pwned"], "time": "10", "memory": "1G"}
GRID = ("train", "-m", "data=wine", "seed=0,1")


@dataclass
class Received:
    """A project with sweeps from elsewhere, and the engines that are built there: each ends its jobs at once."""

    cli: Cli
    project: Path
    config: str
    engines: list[tuple[dict[str, Any], Engine]] = field(default_factory=list)

    def home(self, *names: object, folder: str = "theirs", **head: Any) -> Path:
        """A sweep whose lines nobody has signed; its jobs have paused, the later the worse."""
        home = self.project / "outputs" / "sweeps" / folder
        home.mkdir(parents=True, exist_ok=True)
        head = {"options": {"halving": HALVING}, **head}
        lines: list[dict[str, Any]] = [{"event": "sweep", "format": 1, "time": 1.0, "command": {}, **head}]
        lines += [{"event": "planned", "name": name, "overrides": [], "config": self.config} for name in names]
        for number, name in enumerate(names):
            ended = {"values": {"objective": 0.9 - number / 10}, "epoch": 1, "step": 1, "code": 0, "reason": ""}
            lines += [{"event": "started", "name": name, "time": 1.0}]
            lines += [{"event": "ended", "name": name, "status": "paused", **ended, "told": True}]
        (home / "sweep.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return home

    def own(self, **options: Any) -> Path:
        """A sweep that this project has planned, with the job `a`."""
        home = self.project / "outputs" / "sweeps" / "own"
        home.mkdir(parents=True)
        with Journal(home) as journal:
            journal.head(command={}, options=options)
            journal.plan([Job("a", home / "a", (), self.config)])
        return home

    def mine(self) -> Path:
        """A run of this user's."""
        return a_run(self.project / "outputs" / "runs" / "mine")

    def resume(self, home: Path | str, *typed: str) -> Outcome:
        return self.cli("sweep", "resume", str(home), *typed)

    def refused(self, home: Path | str, said: str, *typed: str) -> None:
        """It is refused with this message, and builds no engine."""
        done, before = self.resume(home, *typed), len(self.engines)
        assert (done.code, said in done.err, len(self.engines)) == (2, True, before), done.err


@pytest.fixture
def received(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> Received:
    made = Received(cli, project, to_yaml(compose(["data=wine", "trainer.epochs=4"]).cfg))

    def build(options: dict[str, Any], _jobs: object, _folder: Path, *, study: bool) -> Engine:
        made.engines.append((options, Engine()))
        return made.engines[-1][1]

    monkeypatch.setattr(multirun, "build_engine", build)
    return made


@pytest.fixture
def programs(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Slurm's programs, which note what they are told and do nothing else."""
    place, noted = project.parent / "bin", project.parent / "noted"
    place.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (place / name).write_text(f'#!/bin/bash\necho "{name} $*" >>{noted}\n')
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return lambda: noted.read_text().splitlines() if noted.exists() else []


def a_run(folder: Path) -> Path:
    """A run that has saved something."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000001.pt").write_text("weights")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder but locks of sweeps."""
    paths = [path for path in sorted(folder.rglob("*")) if path.name != ".lock"]
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.mark.parametrize("name", ["../../runs/mine", "", "seed=0/checkpoints", "a\nb", "/tmp/somebody-else"], ids=ascii)
def test_names_that_lead_elsewhere_start_and_remove_nothing(received: Received, name: str) -> None:
    received.mine()
    home = received.home("seed=0", name)
    before = files(received.project)
    done = received.resume(home)
    assert (done.code, repr(name) in done.err, "sweep.jsonl" in done.err) == (2, True, True), done.err
    assert files(received.project) == before
    shown = received.cli("sweep", "status", str(home))
    assert (shown.code, "no job:" in shown.err) == (0, True), shown.err
    if not name.startswith("seed=0"):  # the job itself, or a folder that no other job is around yet
        assert received.cli("train", "--job", f"{home}/{name}").code == 2
        assert files(received.project) == before


@pytest.mark.parametrize("link", ["b", "b/checkpoints", "sub"])
def test_links_to_the_users_own_runs(received: Received, link: str) -> None:
    mine = received.mine()
    home = received.home("a", "sub/b" if link == "sub" else "b")
    (home / link).parent.mkdir(exist_ok=True)
    (home / link).symlink_to({"b": mine, "b/checkpoints": mine / "checkpoints", "sub": mine.parent}[link])
    before = files(mine)
    done = received.resume(home)
    assert ("link" in done.err, done.code) == ((True, 2) if link != "b/checkpoints" else (False, 0)), done.err
    assert files(mine) == before


def test_own_runs_below_a_journal_that_was_put_above_them(received: Received) -> None:
    mine, project = received.mine(), received.project
    (mine / "config.yaml").write_text(received.config)
    assert sign_run(mine, received.config)
    (received.home("runs/mine", "runs/other") / "sweep.jsonl").rename(project / "outputs" / "sweep.jsonl")
    before = files(mine)
    received.refused("outputs", "that no sweep began")
    assert files(mine) == before
    (mine / ".job").touch()  # as jobs have it that a sweep from elsewhere began here
    assert received.resume("outputs").code == 0


def test_checkpoints_that_came_with_a_sweep_stay_and_own_ones_go(received: Received) -> None:
    home = received.home("a", "b")
    kept = a_run(home / "b") / "checkpoints"
    assert received.resume(home).code == 0
    assert kept.exists()
    assert received.engines[0][0]["halving"]["rungs"] == [1]
    again = received.home("a", "b", folder="trusted")
    gone = a_run(again / "b") / "checkpoints"
    assert received.resume(again, "--trust").code == 0
    assert not gone.exists()


def test_a_folder_that_is_no_run_and_a_journal_in_the_project_itself(received: Received) -> None:
    project, home = received.project, received.home("notes")
    (home / "notes").mkdir()
    (home / "notes" / "mine.txt").touch()
    received.refused(home, "there for something else")
    (project / "conf").mkdir()
    (project / "conf" / "config.yaml").write_text("trust: []\n")
    (project / "sweep.jsonl").write_text((home / "sweep.jsonl").read_text().replace('"notes"', '"conf"'))
    before = files(project / "conf")
    received.refused(project, "in the folder of the project")
    received.refused(project, "conf: a job would write")
    assert files(project / "conf") == before


@pytest.mark.parametrize(
    "options", [{"engine": "slurm", "slurm": SLURM}, {"engine": "ray", "ray": {"address": "127.0.0.1:1"}}]
)
def test_engines_of_a_sweep_from_elsewhere_do_not_count(
    received: Received, programs: Callable[[], list[str]], options: dict[str, Any]
) -> None:
    home = received.home("a", options={**options, "slots": 3, "gpus_per_job": 0, "retries": 1})
    done = received.resume(home)
    assert done.code == 0, done.err
    ((given, _),) = received.engines
    assert (given["engine"], given["slots"], given["gpus_per_job"], given["retries"]) == ("local", 3, 0, 1)
    assert (given["slurm"]["setup"], given["slurm"]["time"], given["ray"]["address"]) == ([], "60", None)
    assert f"these of its options do not count: sweep.engine, sweep.{options['engine']}" in done.err
    assert received.cli("sweep", "stop", str(home)).code == 0
    assert programs() == []


def test_what_is_typed_counts_and_so_does_a_sweep_that_is_trusted(received: Received) -> None:
    options = {"engine": "slurm", "slurm": SLURM}
    done = received.resume(received.home("a", options=options), "sweep.engine=slurm", "sweep.slurm.partition=gpu")
    assert done.code == 0, done.err
    given = received.engines[-1][0]
    assert (given["engine"], given["slurm"]["partition"], given["slurm"]["setup"]) == ("slurm", "gpu", [])
    other = received.home("a", folder="other", options=options)
    assert received.resume(other, "--trust").code == 0
    assert received.engines[-1][0]["slurm"]["setup"] == ["touch pwned"]
    assert read_journal(other).has_planned("a")
    with (other / "sweep.jsonl").open("a") as file:  # what is added to the user's own sweep is not the user's
        added = {"event": "sweep", "options": {"engine": "slurm", "slurm": {"setup": ["touch more"]}}}
        file.write(f"{json.dumps(added)}\n")
    assert received.resume(other).code == 0
    assert received.engines[-1][0]["engine"] == "local"
    assert received.cli("sweep", "status", str(other), "--trust").code == 2


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"engine": "slurm", "slurm": {"time": "1\ntouch pwned"}}, "sweep.slurm.time"),
        ({"engine": "slurm", "slurm": {"no": 1}}, "sweep.slurm.no"),
        ({"slots": 10**9}, "sweep.slots"),
        ({"halving": {"rungs": "all"}}, "sweep.halving.rungs"),
    ],
)
def test_options_that_cannot_be_are_refused_also_with_trust(
    received: Received, options: dict[str, Any], key: str
) -> None:
    received.refused(received.home("a", options=options), f"error: {key}", "--trust")
    assert not received.engines


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "sign"), [("slurm.partition", "\n"), ("slurm.time", "\x1b"), ("ray.address", "\u2028")]
)
def test_control_characters_are_refused_wherever_they_are_typed(cli: Cli, project: Path, key: str, sign: str) -> None:
    typed = cli(*GRID, f"sweep.{key}='a{sign}b'")
    assert (typed.code, f"error: sweep.{key}" in typed.err) == (2, True), typed.err
    group, _, name = key.partition(".")
    (project / "conf").mkdir()
    text = json.dumps({group: {name: f"a{sign}b"}})
    (project / "conf" / "config.yaml").write_text(f"defaults: [_self_]\nsweep: {text}\n")
    done = cli(*GRID)
    assert (done.code, f"error: sweep.{key}" in done.err) == (2, True), done.err
    assert not (project / "outputs").exists()


def test_lines_of_shell_are_one_line_each(cli: Cli, project: Path) -> None:
    done = cli(*GRID, "sweep.slurm.setup=['a','b\nc']")
    assert (done.code, "error: sweep.slurm.setup" in done.err) == (2, True), done.err


def test_a_study_from_elsewhere_composes_no_jobs(received: Received) -> None:
    study = {"sweeper": {"n_trials": 1}, "overrides": ["trust=[os]", "model._target_=os.system"], "facts": {}}
    received.refused(received.home(study=study), "this study comes from elsewhere")
    pytest.importorskip("optuna")
    home = received.project / "outputs" / "begins"
    home.mkdir(parents=True)
    (home / "optuna.journal").touch()
    typed = ("data=wine", "optim.lr=interval(0.1,0.2)", f"hydra.sweep.dir={home}")
    done = received.cli("train", "-m", "hydra/sweeper=optuna", *typed)
    assert (done.code, "this study comes from elsewhere" in done.err) == (2, True), done.err
    assert not any(engine.log for _, engine in received.engines)


def test_ids_of_queues_are_numbers(received: Received, programs: Callable[[], list[str]]) -> None:
    home = received.own(engine="slurm")
    with Journal(home) as journal:
        journal.started("a", None)
    (home / "slurm" / "ended").mkdir(parents=True)
    (home / "slurm" / "ended" / "a").write_text("143\n")
    (home / "slurm" / "000.json").write_text(json.dumps({"id": "--user=me", "names": ["a"]}))
    with pytest.MonkeyPatch.context() as patch:
        from lightkit.sweep.plan import build_engine

        patch.setattr(multirun, "build_engine", build_engine)
        assert received.cli("sweep", "stop", str(home)).code in (0, 143)
    assert {line.split()[0] for line in programs()} == {"squeue"}


def test_links_in_the_folder_of_the_sweep(received: Received) -> None:
    for name in ("slurm", "ray", "study", "optuna.journal", ".lock"):
        home = received.home("a", folder=f"with-{name}")
        (received.project / "elsewhere").mkdir(exist_ok=True)
        (home / name).symlink_to(received.project / "elsewhere")
        received.refused(home, "this link leads out of")


def test_output_of_a_job_is_not_written_through_a_link(received: Received) -> None:
    home = received.home("a", options={})
    (home / "sweep.jsonl").write_text("".join((home / "sweep.jsonl").read_text().splitlines(True)[:2]))
    (home / "a").mkdir()
    (home / "a" / "output.log").symlink_to(received.project / "profile")
    done = received.resume(home)
    assert "this link leads out of" in done.out + done.err
    assert received.engines[0][1].log == ["closed"]


def test_files_that_have_another_name_elsewhere_are_copied_first(received: Received) -> None:
    project, home = received.project, received.home("a")
    os.link(home / "sweep.jsonl", project / "journal")
    before = (project / "journal").read_text()
    (home / "a").mkdir()
    (project / "profile").write_text("mine\n")
    os.link(project / "profile", home / "a" / "output.log")
    assert received.resume(home).code == 0
    assert ((project / "journal").read_text(), (project / "profile").stat().st_nlink) == (before, 1)
    assert (home / "a" / "output.log").read_text() == "mine\n"


def test_a_command_goes_on_with_sweeps_of_its_own_only(received: Received, caplog: pytest.LogCaptureFixture) -> None:
    typed = (*GRID, "trainer.epochs=4")
    assert received.cli(*typed, "sweep.on_error=stop").code == 0
    (mine,) = (received.project / "outputs" / "sweeps").glob("*/*-wine_mlp")
    head = json.loads((mine / "sweep.jsonl").read_text().splitlines()[0])
    home = received.home("seed=0", folder="2099-01-01/1-wine", command=head["command"], time=4e9)
    before = files(home)
    done = received.cli(*typed)
    assert done.code == 0, done.err
    assert files(home) == before
    assert f"{home} is a sweep of the same command from elsewhere" in caplog.text


def test_what_was_stored_by_others_is_not_signed(received: Received) -> None:
    received.config = received.config.replace("on_end: []", "on_end: [touch, x]")
    assert "touch" in received.config
    home = received.home("job")
    lines = (
        (home / "sweep.jsonl").read_text().replace('"overrides": []', '"overrides": ["data=wine", "trainer.epochs=4"]')
    )
    (home / "sweep.jsonl").write_text(lines + json.dumps({"event": "removed", "name": "job"}) + "\n")
    done = received.cli("train", "-m", "data=wine", "trainer.epochs=4", f"hydra.sweep.dir={home}")
    assert done.code == 0, done.err
    record = read_journal(home)
    assert record.has_planned("job")
    assert "touch" not in record.jobs["job"].config


def test_a_run_is_not_stopped_through_a_link_in_a_sweep(received: Received) -> None:
    mine = received.mine()
    (mine / "config.yaml").write_text(received.config)
    home = received.home("a")
    (home / "a").symlink_to(mine)
    done = received.cli("stop", f"{home}/a")
    assert (done.code, "this is a link" in done.err) == (2, True), done.err


def test_own_sweeps_go_on_as_before(received: Received) -> None:
    home = received.own(engine="slurm", slurm={"setup": ["module load cuda"]})
    with Journal(home) as journal:
        journal.ended(JobOutcome("a", "failed", code=1), told=True)
    done = received.resume(home, "sweep.slots=2")
    assert done.code == 0, done.err
    given = received.engines[0][0]
    assert (given["engine"], given["slots"], given["slurm"]["setup"]) == ("slurm", 2, ["module load cuda"])
    assert "elsewhere" not in done.err
