from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lightkit.runs.lock import locked
from lightkit.sweep.engines import local as module
from lightkit.sweep.journal import find_job
from tests.conftest import Cli


class Job:
    """A process that trains nothing: its exit status is looked up by its seed."""

    started: list[list[str]] = []
    codes: dict[str, int] = {}

    def __init__(self, command: list[str], **_options: object) -> None:
        self.folder = Path(command[command.index("--job") + 1])
        overrides = find_job(self.folder)[0].overrides
        self.started.append([*overrides])
        seed = next(text for text in overrides if text.startswith("seed="))
        self.code = self.codes.get(seed, 0)

    def poll(self) -> int:
        if self.code == 0:
            result = {"status": "finished", "objective": {"name": "val/accuracy", "value": 0.5}}
            (self.folder / "result.json").write_text(json.dumps(result))
        return self.code


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> type[Job]:
    made = type("Job", (Job,), {"started": [], "codes": {}})
    monkeypatch.setattr(module, "Child", made)
    monkeypatch.setattr(module.LocalEngine, "_forked", lambda self, *job: module._fresh(*job))
    return made


def test_one_process_per_job_in_folders_named_by_what_differs(cli: Cli, job: type[Job], project: Path) -> None:
    done = cli("train", "-m", "data=wine", "seed=0,1", "optim.lr=0.1,0.2")
    assert done.code == 0, done.err
    (folder,) = (project / "outputs").glob("sweeps/*/*-wine_mlp")
    names = ["seed=0,optim.lr=0.1", "seed=0,optim.lr=0.2", "seed=1,optim.lr=0.1", "seed=1,optim.lr=0.2"]
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == names
    assert job.started[0] == ["data=wine", "seed=0", "optim.lr=0.1"]
    assert done.out.partition("\njob ")[2].count("0.5000") == 4


def test_failures_are_told_and_the_rest_goes_on(cli: Cli, job: type[Job]) -> None:
    job.codes["seed=1"] = 3
    done = cli("train", "--multirun", "seed=0,1,2")
    assert (done.code, len(job.started)) == (3, 3)
    assert "failed (3)" in done.out
    assert "1 of 3 jobs failed" in done.err
    assert "go on with:  lightkit sweep resume " in done.out


def test_a_stopped_job_stops_the_sweep(cli: Cli, job: type[Job]) -> None:
    job.codes["seed=1"] = 130
    done = cli("train", "-m", "seed=0,1,2", "sweep.slots=1")
    assert done.code == 130
    assert len(job.started) == 2
    assert "not started" in done.out


def test_nothing_starts_while_one_job_is_wrong(cli: Cli, job: type[Job], project: Path) -> None:
    done = cli("train", "-m", "seed=0,1", "optim=adamw,adamww")
    assert done.code == 2
    assert "nearest: adamw" in done.err
    assert "1 problem found" in done.err
    assert job.started == []
    assert not (project / "outputs").exists()


@pytest.mark.parametrize("where", ["typed", pytest.param("project", marks=pytest.mark.thorough)])
def test_a_sweep_folder_that_looks_like_hydras_own_is_respected(
    cli: Cli, job: type[Job], project: Path, where: str
) -> None:
    folder, typed = "multirun/${now:%Y}/mine", list[str]()
    if where == "typed":
        typed.append(f"hydra.sweep.dir={folder}")
    else:
        (project / "conf").mkdir()
        (project / "conf/config.yaml").write_text(f"hydra: {{sweep: {{dir: '{folder}'}}}}\n", encoding="utf-8")
    assert cli("train", "-m", "seed=0,1", *typed).code == 0
    (mine,) = (project / "multirun").glob("*/mine")
    names = {path.name for path in mine.iterdir()}
    assert names == {"seed=0", "seed=1", "results.csv", "results.txt", "sweep.jsonl", ".lock"}


@pytest.fixture
def earlier(cli: Cli, project: Path) -> Path:
    """A run with a configuration that is not the default one."""
    folder = project / "outputs" / "runs" / "2026-01-31" / "12-00-00-earlier"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(cli("train", "data=wine", "name=other", "--cfg", "job", "--resolve").out)
    return folder


def test_a_sweep_over_an_earlier_run(cli: Cli, job: type[Job], project: Path, earlier: Path) -> None:
    done = cli("train", "-m", "--from", "last", "seed=0,1")
    assert done.code == 0, done.err
    assert job.started == [["seed=0"], ["seed=1"]]
    (folder,) = (project / "outputs").glob("sweeps/*/*-other")
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"seed=0", "seed=1"}
    assert cli("train", "-m", "--from", "last", "seed=0,1", "hydra.sweep.dir=mine").code == 0
    assert (project / "mine" / "seed=1").is_dir()


@pytest.mark.usefixtures("earlier")
def test_what_a_sweep_over_a_run_cannot_do(cli: Cli, job: type[Job]) -> None:
    for typed, messages in {
        "seed=0,1 optim.lrr=1": ["optim.lrr", "1 problem found"],
        "seed=0,1 hydra/sweeper=optuna": ["another sweeper or launcher cannot start from a run"],
        "seed=interval(0,1)": ["this sweep can't be laid out"],
        "seed=3,4 --cfg hydra": ["only the jobs of a sweep can be printed"],
    }.items():
        wrong = cli("train", "-m", "--from", "last", *typed.split())
        assert wrong.code == 2
        assert all(message in wrong.err for message in messages), wrong.err
    assert job.started == []


@pytest.mark.usefixtures("earlier")
@pytest.mark.parametrize("source", [("--from", "last"), pytest.param((), marks=pytest.mark.thorough)], ids=len)
def test_the_jobs_of_a_sweep_are_printed(cli: Cli, job: type[Job], project: Path, source: tuple[str, ...]) -> None:
    done = cli("train", "-m", *source, "seed=3,4", "--cfg", "job", "-p", "seed")
    assert done.code == 0, done.err
    assert done.out == "# job 1 of 2: seed=3\n3\n---\n# job 2 of 2: seed=4\n4\n"
    assert (job.started, (project / "outputs" / "sweeps").exists()) == ([], False)


def test_the_table_stays_in_the_folder(cli: Cli, job: type[Job], project: Path) -> None:
    job.codes |= {"seed=1": 137, "seed=2": 143}
    done = cli("train", "-m", "data=wine", "seed=0,1,2,3", "hydra.sweep.dir=mine", "sweep.slots=1")
    assert (done.code, "seed=1  failed (137): killed by signal 9" in done.out) == (137, True)
    with (project / "mine" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("job", "seed", "status", "best", "exit_status", "reason")
    assert [",".join(row[name] for name in columns) for row in rows] == [
        "seed=0,0,done,0.5,0,",
        "seed=1,1,failed (137),,137,killed by signal 9 (SIGKILL)",
        "seed=2,2,interrupted,,143,",
        "seed=3,3,not started,,,",
    ]
    assert "data" not in rows[0]
    text = (project / "mine" / "results.txt").read_text()
    assert (text.startswith("job     status"), "seed=1: killed by signal 9" in text) == (True, True)


def test_one_job_is_a_sweep_too(cli: Cli, job: type[Job], project: Path) -> None:
    done = cli("train", "-m", "seed=5", "hydra.sweep.dir=mine")
    assert (done.code, len(job.started)) == (0, 1)
    assert "note: nothing varies, so this sweep has one job" in done.err
    assert "run,done" in (project / "mine" / "results.csv").read_text()
    assert "note:" not in cli("train", "-m", "seed=0,1", "--cfg", "job", "-p", "seed").err


def test_the_same_command_goes_on_with_its_sweep(cli: Cli, job: type[Job], project: Path) -> None:
    job.codes["seed=1"] = 3
    assert cli("train", "-m", "data=wine", "seed=0,1").code == 3
    job.started.clear()
    job.codes.clear()
    done = cli("train", "-m", "data=wine", "seed=0,1")
    assert done.code == 0, done.err
    assert job.started == [["data=wine", "seed=1"]]
    assert "1 of 2 jobs done, 0 new" in done.out
    assert len(list((project / "outputs").glob("sweeps/*/*"))) == 1
    assert cli("train", "-m", "data=wine", "seed=0,1").code == 0  # that one is finished: a new one
    assert len(list((project / "outputs").glob("sweeps/*/*"))) == 2


def test_a_grid_that_grew(cli: Cli, job: type[Job], project: Path) -> None:
    where = "hydra.sweep.dir=mine"
    assert cli("train", "-m", "data=wine", "seed=0,1", where).code == 0
    done = cli("train", "-m", "data=wine", "seed=0,1,2", where, "sweep.retries=1")
    assert done.code == 0, done.err
    assert [typed[-1] for typed in job.started] == ["seed=0", "seed=1", "seed=2"]
    assert (project / "mine" / "results.csv").read_text().count("done") == 3
    smaller = cli("train", "-m", "data=wine", "seed=1,2", where)
    assert smaller.code == 0
    assert len(job.started) == 3
    assert (project / "mine" / "results.csv").read_text().count("done") == 2
    other = cli("train", "-m", "data=wine", "seed=1,2", "optim.lr=0.5", where)
    assert other.code == 2
    assert "the folder already holds a sweep with other settings" in other.err
    assert "received: 'optim.lr=0.5'" in other.err
    assert cli("train", "-m", "data=wine", "seed=1,2", "optim.lr=0.5", where, "resume=auto").code == 0
    assert len(job.started) == 5


def test_what_is_stored_counts_and_not_what_files_say_today(cli: Cli, job: type[Job], project: Path) -> None:
    conf = project / "conf" / "optim"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text("defaults: [adamw]\nlr: 0.1\n")
    job.codes["seed=1"] = 1
    assert cli("train", "-m", "data=wine", "optim=mine", "seed=0,1").code == 1
    (conf / "mine.yaml").write_text("defaults: [adamw]\nlr: 0.2\n")
    job.codes.clear()
    done = cli("train", "-m", "data=wine", "optim=mine", "seed=0,1")
    assert done.code == 0, done.err
    assert "the configuration has changed since for 2 jobs; what is stored counts" in done.out
    (sweep,) = (project / "outputs").glob("sweeps/*/*")
    assert "lr: 0.1" in find_job(sweep / "seed=1")[0].config
    assert "sweep:" not in find_job(sweep / "seed=1")[0].config


def test_two_processes_cannot_run_one_sweep(cli: Cli, job: type[Job], project: Path) -> None:
    assert cli("train", "-m", "data=wine", "seed=0,1", "hydra.sweep.dir=mine").code == 0
    with locked(project / "mine"):
        refused = cli("train", "-m", "data=wine", "seed=0,1", "hydra.sweep.dir=mine")
        assert refused.code == 75
        assert "runs this sweep" in refused.err
        assert cli("sweep", "resume", "mine").code == 75


def test_folders_of_jobs_can_be_named(cli: Cli, job: type[Job], project: Path) -> None:
    done = cli("train", "-m", "data=wine", "seed=0,1", "hydra.sweep.dir=mine", "hydra.sweep.subdir=a${hydra:job.num}")
    assert done.code == 0, done.err
    assert sorted(path.name for path in (project / "mine").iterdir() if path.is_dir()) == ["a0", "a1"]
    same = cli("train", "-m", "data=wine", "seed=0,1", "hydra.sweep.dir=other", "hydra.sweep.subdir=a")
    assert same.code == 2
    assert "hydra.sweep.subdir: a job would write into the folder of another one" in same.err
    assert not (project / "other").exists()


def test_the_mode_starts_a_sweep(cli: Cli, job: type[Job], project: Path) -> None:
    assert cli("train", "data=wine", "seed=0,1", "hydra.mode=MULTIRUN").code == 0
    assert len(job.started) == 2
    (project / "experiments/two.yaml").write_text("hydra: {mode: MULTIRUN, sweeper: {params: {seed: '2,3'}}}\n")
    assert cli("train", "data=wine", "experiment=two").code == 0
    assert [text for command in job.started for text in command if text.startswith("seed=")][2:] == ["seed=2", "seed=3"]
    assert cli("train", "data=wine", "experiment=two", "optim.lr=0.1,0.2").code == 0
    assert len(job.started) == 8


@pytest.mark.usefixtures("earlier")
def test_what_nothing_would_come_of_is_refused(cli: Cli, job: type[Job]) -> None:
    for typed in ("", "--from last", "-m seed=3,4", "-m --from last seed=3,4"):
        wrong = cli("train", *typed.split(), "hydra.job.chdir=true")
        assert (wrong.code, "hydra.job.chdir: nothing comes of this setting" in wrong.err) == (2, True)
    assert job.started == []


@pytest.mark.thorough(first=0)
def test_jobs_of_joblib(cli: Cli, process: Cli, project: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    small = ("data=wine", "model.hidden=[8]", "trainer.epochs=1", "logger=quiet", "extra.at='${now:%S%f}'")
    (project / "hydra_plugins").mkdir()
    (project / "hydra_plugins/mine.py").write_text("open('canary', 'w')\n")  # that nobody has named
    joblib = ("train", "-m", *small, "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "hydra.sweep.dir=mine")
    done = process(*joblib, "seed=0,1")
    assert done.code == 0, done.err
    first = {path.parent.name: path.read_text() for path in project.glob("mine/*/config.yaml")}
    assert sorted(first) == ["seed=0", "seed=1"]
    assert all("\nname: wine_mlp\n" in text for text in first.values())
    again = cli(*joblib, "seed=0,1")
    assert (again.code, "seed=0: the folder already holds a run" in again.err) == (2, True)
    results = {path: path.stat().st_mtime_ns for path in project.glob("mine/*/result.json")}
    more = process(*joblib, "seed=0,1,2", "resume=auto")
    assert more.code == 0, more.err
    assert {path: path.stat().st_mtime_ns for path in results} == results
    assert (project / "mine/seed=2/result.json").is_file()
    assert first == {path.parent.name: path.read_text() for path in project.glob("mine/seed=[01]/config.yaml")}
    assert not (project / "canary").exists()


def test_variables_and_times_of_a_run(process: Cli, project: Path) -> None:
    (project / "noting.py").write_text(
        "import os\nimport lightkit.trainer\n\n\n"
        "class Note(lightkit.trainer.Callback):\n    def on_fit_start(self, trainer):\n"
        "        open('noted', 'w').write(os.environ['NOTED'])\n"
    )
    small = ("data=wine", "trainer.epochs=1", "logger=quiet", "hydra.run.dir=mine/${hydra:job.config_name}")
    typed = ("train", *small, "extra.at='${now:%S%f}'", "trainer.callbacks.note._target_=noting.Note")
    done = process(*typed, "hydra.job.env_set.NOTED=yes")
    assert done.code == 0, done.err
    assert (project / "noted").read_text() == "yes"
    before = (project / "mine/config/config.yaml").read_text()
    again = process(*typed, "resume=auto")
    assert "has finished already" in again.out
    assert (project / "mine/config/config.yaml").read_text() == before


def test_a_sweep_of_no_value_is_told(cli: Cli, job: type[Job]) -> None:
    for typed in (
        "seed=range(0)",
        "seed=range(3,1) optim.lr=0.1,0.2",
        "seed=range(0) optim.lr=1,2 hydra/sweeper=optuna",
    ):
        wrong = cli("train", "-m", "data=wine", *typed.split())
        assert (wrong.code, "fix:      seed=range(0,3)" in wrong.err) == (2, True)
        assert "seed: a sweep without any value makes no job" in wrong.err
    assert not job.started
