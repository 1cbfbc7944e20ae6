"""Sweeps that somebody else has made: what their journals, links and files reach when they are resumed or stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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


@pytest.fixture
def config(project: Path) -> str:
    return to_yaml(compose(["data=wine", "trainer.epochs=4"]).cfg)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], Engine]]:
    """The engines that are built, with their options; each ends its jobs at once."""
    built: list[tuple[dict[str, Any], Engine]] = []

    def build(options: dict[str, Any], _jobs: object, _folder: Path, *, study: bool) -> Engine:
        built.append((options, Engine()))
        return built[-1][1]

    monkeypatch.setattr(multirun, "build_engine", build)
    return built


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


def theirs(project: Path, config: str, *names: object, folder: str = "theirs", **head: Any) -> Path:
    """A sweep whose lines nobody has signed; its jobs have paused, the later the worse."""
    home = project / "outputs" / "sweeps" / folder
    home.mkdir(parents=True, exist_ok=True)
    head = {"options": {"halving": HALVING}, **head}
    lines: list[dict[str, Any]] = [{"event": "sweep", "format": 1, "time": 1.0, "command": {}, **head}]
    lines += [{"event": "planned", "name": name, "overrides": [], "config": config} for name in names]
    for number, name in enumerate(names):
        ended = {"values": {"objective": 0.9 - number / 10}, "epoch": 1, "step": 1, "code": 0, "reason": ""}
        lines += [{"event": "started", "name": name, "time": 1.0}]
        lines += [{"event": "ended", "name": name, "status": "paused", **ended, "told": True}]
    (home / "sweep.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return home


def a_run(folder: Path) -> Path:
    """A run that has saved something."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000001.pt").write_text("weights")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder but locks of sweeps."""
    found = [path for path in sorted(folder.rglob("*")) if path.name != ".lock"]
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in found}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        *("../../runs/mine", "seed=0/../../../runs/mine", "../../../conf", "..", ".", "", "seed=0/", "sweep.jsonl"),
        *(
            "/tmp/lightkit-of-somebody-else",
            "seed=0/checkpoints",
            "a\nb",
            "slurm",
            "n" * 300,
            ".mark",
            "checkpoints",
            "Members",
        ),
    ],
    ids=ascii,
)
def test_names_that_lead_elsewhere_start_and_remove_nothing(
    cli: Cli, project: Path, config: str, engines: list[Any], name: str
) -> None:
    a_run(project / "outputs" / "runs" / "mine")
    home = theirs(project, config, "seed=0", name)
    before = files(project)
    done = cli("sweep", "resume", str(home))
    assert done.code == 2
    assert repr(name) in done.err
    assert "sweep.jsonl" in done.err
    assert files(project) == before
    shown = cli("sweep", "status", str(home))
    assert shown.code == 0, shown.err
    assert "no job:" in shown.err
    if not name.startswith("seed=0"):  # the job itself, or a folder that no other job is around yet
        assert cli("train", "--job", f"{home}/{name}").code == 2
        assert files(project) == before


def test_absolute_names(cli: Cli, project: Path, config: str, engines: list[Any]) -> None:
    mine = a_run(project / "outputs" / "runs" / "mine")
    before = files(mine)
    assert cli("sweep", "resume", str(theirs(project, config, "seed=0", str(mine)))).code == 2
    assert files(mine) == before


@pytest.mark.parametrize("link", ["b", "b/checkpoints", "sub"])
def test_links_to_the_users_own_runs(cli: Cli, project: Path, config: str, engines: list[Any], link: str) -> None:
    mine = a_run(project / "outputs" / "runs" / "mine")
    home = theirs(project, config, "a", "sub/b" if link == "sub" else "b")
    (home / link).parent.mkdir(exist_ok=True)
    (home / link).symlink_to({"b": mine, "b/checkpoints": mine / "checkpoints", "sub": mine.parent}[link])
    before = files(mine)
    done = cli("sweep", "resume", str(home))
    assert ("link" in done.err, done.code) == ((True, 2) if link != "b/checkpoints" else (False, 0)), done.err
    assert files(mine) == before


def test_own_runs_below_a_journal_that_was_put_above_them(
    cli: Cli, project: Path, config: str, engines: list[Any]
) -> None:
    mine = a_run(project / "outputs" / "runs" / "mine")
    (mine / "config.yaml").write_text(config)
    assert sign_run(mine, config)
    home = theirs(project, config, "runs/mine", "runs/other")
    (home / "sweep.jsonl").rename(project / "outputs" / "sweep.jsonl")
    before = files(mine)
    done = cli("sweep", "resume", "outputs")
    assert (done.code, "that no sweep began" in done.err) == (2, True), done.err
    assert (files(mine), engines) == (before, [])
    (mine / ".job").touch()  # as jobs have it that a sweep from elsewhere began here
    assert cli("sweep", "resume", "outputs").code == 0


def test_checkpoints_that_came_with_a_sweep_stay_and_own_ones_go(
    cli: Cli, project: Path, config: str, engines: list[Any]
) -> None:
    home = theirs(project, config, "a", "b")
    kept = a_run(home / "b") / "checkpoints"
    assert cli("sweep", "resume", str(home)).code == 0
    assert kept.exists()
    assert engines[0][0]["halving"]["rungs"] == [1]
    again = theirs(project, config, "a", "b", folder="trusted")
    gone = a_run(again / "b") / "checkpoints"
    assert cli("sweep", "resume", str(again), "--trust").code == 0
    assert not gone.exists()


def test_a_folder_that_is_no_run_and_a_journal_in_the_project_itself(
    cli: Cli, project: Path, config: str, engines: list[Any]
) -> None:
    home = theirs(project, config, "notes")
    (home / "notes").mkdir()
    (home / "notes" / "mine.txt").touch()
    done = cli("sweep", "resume", str(home))
    assert (done.code, "there for something else" in done.err) == (2, True)
    (project / "conf").mkdir()
    (project / "conf" / "config.yaml").write_text("trust: []\n")
    (project / "sweep.jsonl").write_text((home / "sweep.jsonl").read_text().replace('"notes"', '"conf"'))
    before = files(project / "conf")
    done = cli("sweep", "resume", str(project))
    assert (done.code, "in the folder of the project" in done.err) == (2, True)
    assert "conf: a job would write" in done.err
    assert files(project / "conf") == before
    assert not engines


SLURM = {"setup": ["touch pwned"], "partition": "x", "options": ["--wrap=touch pwned"], "time": "10", "memory": "1G"}


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "slurm", "slurm": SLURM},
        {"engine": "slurm", "slurm": {"time": "1\ntouch pwned"}},
        {"engine": "ray", "ray": {"address": "127.0.0.1:1"}},
    ],
)
def test_engines_of_a_sweep_from_elsewhere_do_not_count(
    cli: Cli, project: Path, config: str, programs: Callable[[], list[str]], options: dict[str, Any]
) -> None:
    built: list[Any] = []
    home = theirs(project, config, "a", options={**options, "slots": 3, "gpus_per_job": 0, "retries": 1})

    def build(given: Any, *_: object, **_how: object) -> Engine:
        built.append(given)
        return Engine()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multirun, "build_engine", build)
        done = cli("sweep", "resume", str(home))
    assert done.code == 0, done.err
    (given,) = built
    assert (given["engine"], given["slots"], given["gpus_per_job"], given["retries"]) == ("local", 3, 0, 1)
    assert (given["slurm"]["setup"], given["slurm"]["time"], given["ray"]["address"]) == ([], "60", None)
    assert f"these of its options do not count: sweep.engine, sweep.{options['engine']}" in done.err
    assert cli("sweep", "stop", str(home)).code == 0
    assert programs() == []


def test_what_is_typed_counts_and_so_does_a_sweep_that_is_trusted(
    cli: Cli, project: Path, config: str, engines: list[Any]
) -> None:
    home = theirs(project, config, "a", options={"engine": "slurm", "slurm": SLURM})
    done = cli("sweep", "resume", str(home), "sweep.engine=slurm", "sweep.slurm.partition=gpu")
    assert done.code == 0, done.err
    given = engines[-1][0]
    assert (given["engine"], given["slurm"]["partition"], given["slurm"]["setup"]) == ("slurm", "gpu", [])
    other = theirs(project, config, "a", folder="other", options={"engine": "slurm", "slurm": SLURM})
    assert cli("sweep", "resume", str(other), "--trust").code == 0
    assert engines[-1][0]["slurm"]["setup"] == ["touch pwned"]
    assert read_journal(other).has_planned("a")
    with (other / "sweep.jsonl").open("a") as file:  # what is added to the user's own sweep is not the user's
        added = {"event": "sweep", "options": {"engine": "slurm", "slurm": {"setup": ["touch more"]}}}
        file.write(f"{json.dumps(added)}\n")
    assert cli("sweep", "resume", str(other)).code == 0
    assert engines[-1][0]["engine"] == "local"
    assert cli("sweep", "status", str(other), "--trust").code == 2


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"engine": "slurm", "slurm": {"time": "1\ntouch pwned"}}, "sweep.slurm.time"),
        ({"engine": "slurm", "slurm": {"no": 1}}, "sweep.slurm.no"),
        ({"slots": "many"}, "sweep.slots"),
        ({"slots": 10**9}, "sweep.slots"),
        ({"halving": {"rungs": "all"}}, "sweep.halving.rungs"),
    ],
)
def test_options_that_cannot_be_are_refused_also_with_trust(
    cli: Cli, project: Path, config: str, engines: list[Any], options: dict[str, Any], key: str
) -> None:
    home = theirs(project, config, "a", options=options)
    done = cli("sweep", "resume", str(home), "--trust")
    assert (done.code, f"error: {key}" in done.err, engines) == (2, True, [])


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["slurm.partition", "slurm.account", "slurm.memory", "slurm.time", "ray.address"])
@pytest.mark.parametrize("sign", ["\\n", "\\x1b", "\\u2028"])
def test_control_characters_are_refused_wherever_they_are_typed(cli: Cli, project: Path, key: str, sign: str) -> None:
    value = json.loads(f'"{sign}"') if sign != "\\x1b" else "\x1b"
    (project / "conf" / "sweep").mkdir(parents=True)
    group, _, name = key.partition(".")
    text = json.dumps({group: {name: f"a{value}b"}})
    (project / "conf" / "config.yaml").write_text(f"defaults: [_self_]\nsweep: {text}\n")
    done = cli("train", "-m", "data=wine", "seed=0,1")
    assert (done.code, f"error: sweep.{key}" in done.err) == (2, True), done.err
    (project / "conf" / "config.yaml").unlink()
    typed = cli("train", "-m", "data=wine", "seed=0,1", f"sweep.{key}='a{value}b'")
    assert typed.code == 2
    assert not (project / "outputs").exists()


def test_lines_of_shell_are_one_line_each(cli: Cli, project: Path) -> None:
    done = cli("train", "-m", "data=wine", "seed=0,1", "sweep.slurm.setup=['a','b\nc']")
    assert (done.code, "error: sweep.slurm.setup" in done.err) == (2, True), done.err


def test_a_study_from_elsewhere_composes_no_jobs(cli: Cli, project: Path, config: str, engines: list[Any]) -> None:
    study = {"sweeper": {"n_trials": 1}, "overrides": ["trust=[os]", "model._target_=os.system"], "facts": {}}
    home = theirs(project, config, study=study)
    done = cli("sweep", "resume", str(home))
    assert (done.code, "this study comes from elsewhere" in done.err, engines) == (2, True, [])


def test_a_study_that_lies_where_one_is_to_begin(cli: Cli, project: Path) -> None:
    pytest.importorskip("optuna")
    home = project / "outputs" / "mine"
    home.mkdir(parents=True)
    (home / "optuna.journal").touch()
    typed = ("data=wine", "optim.lr=interval(0.1,0.2)", f"hydra.sweep.dir={home}")
    done = cli("train", "-m", "hydra/sweeper=optuna", *typed)
    assert (done.code, "this study comes from elsewhere" in done.err) == (2, True), done.err


def test_ids_of_queues_are_numbers(
    cli: Cli, project: Path, config: str, programs: Callable[[], list[str]], tmp_path: Path
) -> None:
    home = project / "outputs" / "sweeps" / "mine"
    home.mkdir(parents=True)
    with Journal(home) as journal:
        journal.head(command={}, options={"engine": "slurm"})
        journal.plan([Job("a", home / "a", (), config)])
        journal.started("a", None)
    ended = home / "slurm" / "ended"
    ended.mkdir(parents=True)
    (ended / "a").write_text("143\n")
    (home / "slurm" / "000.json").write_text(json.dumps({"id": "--user=me", "names": ["a"]}))
    assert cli("sweep", "stop", str(home)).code in (0, 143)
    assert {line.split()[0] for line in programs()} == {"squeue"}


def test_links_in_the_folder_of_the_sweep(cli: Cli, project: Path, config: str, engines: list[Any]) -> None:
    for name in ("slurm", "ray", "study", "optuna.journal", ".lock"):
        home = theirs(project, config, "a", folder=f"with-{name}")
        (project / "elsewhere").mkdir(exist_ok=True)
        (home / name).symlink_to(project / "elsewhere")
        done = cli("sweep", "resume", str(home))
        assert (done.code, "this link leads out of" in done.err) == (2, True), done.err


def test_output_of_a_job_is_not_written_through_a_link(
    cli: Cli, project: Path, config: str, engines: list[Any]
) -> None:
    home = theirs(project, config, "a", options={})
    (home / "sweep.jsonl").write_text("".join((home / "sweep.jsonl").read_text().splitlines(True)[:2]))
    (home / "a").mkdir()
    (home / "a" / "output.log").symlink_to(project / "profile")
    done = cli("sweep", "resume", str(home))
    assert "this link leads out of" in done.out + done.err
    assert engines[0][1].log == ["closed"]


def test_files_that_have_another_name_elsewhere_are_copied_first(
    cli: Cli, project: Path, config: str, engines: list[Any]
) -> None:
    home = theirs(project, config, "a")
    os.link(home / "sweep.jsonl", project / "journal")
    before = (project / "journal").read_text()
    (home / "a").mkdir()
    (project / "profile").write_text("mine\n")
    os.link(project / "profile", home / "a" / "output.log")
    assert cli("sweep", "resume", str(home)).code == 0
    assert ((project / "journal").read_text(), (project / "profile").stat().st_nlink) == (before, 1)
    assert (home / "a" / "output.log").read_text() == "mine\n"


def test_a_command_goes_on_with_sweeps_of_its_own_only(
    cli: Cli, project: Path, config: str, engines: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    typed = ("train", "-m", "data=wine", "trainer.epochs=4", "seed=0,1")
    assert cli(*typed, "sweep.on_error=stop").code == 0
    (mine,) = (project / "outputs" / "sweeps").glob("*/*-wine_mlp")
    head = json.loads((mine / "sweep.jsonl").read_text().splitlines()[0])
    home = theirs(project, config, "seed=0", folder="2099-01-01/1-wine", command=head["command"], time=4e9)
    before = files(home)
    done = cli(*typed)
    assert done.code == 0, done.err
    assert files(home) == before
    assert f"{home} is a sweep of the same command from elsewhere" in caplog.text


def test_what_was_stored_by_others_is_not_signed(cli: Cli, project: Path, engines: list[Any]) -> None:
    evil = to_yaml(compose(["data=wine", "trainer.epochs=4", "seed=0"]).cfg).replace("on_end: []", "on_end: [touch, x]")
    assert "touch" in evil
    home = theirs(project, evil, "job")
    lines = (home / "sweep.jsonl").read_text().replace('"overrides": []', '"overrides": ["data=wine", "seed=0"]')
    (home / "sweep.jsonl").write_text(lines + json.dumps({"event": "removed", "name": "job"}) + "\n")
    done = cli("train", "-m", "data=wine", "seed=0", f"hydra.sweep.dir={home}")
    assert done.code == 0, done.err
    record = read_journal(home)
    assert record.has_planned("job")
    assert "touch" not in record.jobs["job"].config


def test_a_run_is_not_stopped_through_a_link_in_a_sweep(cli: Cli, project: Path, config: str) -> None:
    mine = a_run(project / "outputs" / "runs" / "mine")
    (mine / "config.yaml").write_text(config)
    home = theirs(project, config, "a")
    (home / "a").symlink_to(mine)
    done = cli("stop", f"{home}/a")
    assert (done.code, "this is a link" in done.err) == (2, True), done.err


def test_own_sweeps_go_on_as_before(cli: Cli, project: Path, config: str, engines: list[Any]) -> None:
    home = project / "outputs" / "sweeps" / "mine"
    home.mkdir(parents=True)
    with Journal(home) as journal:
        journal.head(command={}, options={"engine": "slurm", "slurm": {"setup": ["module load cuda"]}})
        journal.plan([Job("a", home / "a", (), config)])
        journal.ended(JobOutcome("a", "failed", code=1), told=True)
    done = cli("sweep", "resume", str(home), "sweep.slots=2")
    assert done.code == 0, done.err
    given = engines[0][0]
    assert (given["engine"], given["slots"], given["slurm"]["setup"]) == ("slurm", 2, ["module load cuda"])
    assert "elsewhere" not in done.err
