"""Parts that are chosen by a name: those of a project, those of a package, and what is refused."""

from __future__ import annotations

import importlib.metadata
import textwrap
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import hydra
import pytest

from lightkit.common.doors import SHIPPED, import_path
from lightkit.config import doors
from lightkit.config.doors import is_installed
from tests.conftest import Outcome

Cli = Callable[..., Outcome]


ENGINE = """
import subprocess
from lightkit.common.strategies import Strategy, Unsupported
from lightkit.device import Parallel
from lightkit.doctor.finding import Finding
from lightkit.sweep.engines.base import JobEngine, job_command

class Turns(JobEngine):
    def __init__(self, plan, mark="ended"):
        self.mark, self.jobs = mark, {}
    def room(self):
        return 0 if self.jobs else 1
    def start(self, start):
        self.jobs[start.job.name] = subprocess.Popen(job_command(start), cwd=".", stdout=-3, stderr=-3)
    def stop(self, name, *, now=False):
        self.jobs[name].kill() if now else self.jobs[name].terminate()
    def wait(self, seconds):
        ended = {name: process.wait() for name, process in self.jobs.items()}
        self.jobs.clear()
        print(self.mark, *ended)
        return ended

class Odd:
    pass

class Rows:
    def __init__(self, least):
        self.least = least
    def __call__(self, run):
        rows = len(run.learner().data.train.rows)
        yield Finding("rows", "ok" if rows >= self.least else "error", f"{rows} rows to learn from")

def width(cfg, options, factor=2):
    from lightkit.cli.find import Answer
    best = factor * cfg.model.hidden[0]
    return Answer("model.hidden", [best], "twice as wide", (), [], {"tried": 1}, None)

class Alone(Parallel):
    strategy = Strategy("alone", refuses={"compile": Unsupported("not alone", "device.compile=none")})
    def __init__(self, device, ranks=None, *, mark=1):
        super().__init__(device, ranks)
        self.mark = mark if mark else 1 / mark
    def describe(self):
        return f", alone with {self.mark}"

def titled(run):
    yield Finding("title", "note", run.cfg.name)
"""


@pytest.fixture
def own(project: Path) -> Callable[[str], None]:
    """Writes `conf/plugins.yaml` of a project with some modules."""
    (project / "conf").mkdir()
    (project / "own_engines.py").write_text(ENGINE)
    return lambda text: (project / "conf" / "plugins.yaml").write_text(text) and None


def test_what_is_shipped_is_found_by_the_same_way() -> None:
    for door, name in ((door, name) for door, parts in SHIPPED.items() for name in parts):
        assert doors.load(door, name)[0] is import_path(SHIPPED[door][name])


@pytest.mark.thorough
def test_a_sweep_runs_by_an_engine_of_the_project(cli: Cli, own: Callable[[str], None]) -> None:
    own("sweep.engine: {turns: {_target_: own_engines.Turns, mark: over}}\n")
    done = cli("train", "-m", "data=wine", "trainer.steps=1", "trainer.epochs=null", "seed=0", "sweep.engine=turns")
    assert done.code == 0, done.err
    assert "over run" in done.out
    assert "1 of 1" in cli("sweep", "status", "last").out


def test_a_run_uses_a_strategy_of_the_project(cli: Cli, own: Callable[[str], None]) -> None:
    own("device.parallel: {alone: {_target_: own_engines.Alone, mark: 3}}\n")
    strategy = "device.parallel={_target_: own_engines.Alone, mark: 3}"
    for chosen in ("device.parallel=alone", strategy):
        done = cli("train", "data=wine", "trainer.steps=1", "trainer.epochs=null", "device=cpu", chosen)
        assert done.code == 0, done.err
        assert "alone with 3" in done.out
    for wrong, words in (
        (["device.compile=default", strategy], ["device.compile: not alone", "fix:      device.compile=none"]),
        (["device.parallel=alne"], ["none, dp, ddp, fsdp, alone", "nearest: alone"]),
        (["device.parallel={_target_: own_engines.Odd}"], ["a class of another kind", "a strategy"]),
        (["device.parallel={_target_: own_engines.Alone, mrk: 3}"], ["did you mean device.parallel.mark?"]),
        (["device.parallel={_target_: own_engines.Alone, ranks: 3}"], ["filled in when the run is built"]),
        (["device.parallel={_target_: own_engines.Alone, mark: 0}"], ["Alone could not be built", "ZeroDivision"]),
    ):
        refused = cli("train", "data=wine", *wrong)
        assert refused.code == 2
        assert "Traceback" not in refused.err
        assert not [word for word in words if word not in refused.err], refused.err


WRONG = """
{turns: own_engines.Turns} ; turn ; local, slurm, ray, turns ; nearest: turns
{turns: own_engines.Truns} ; turns ; own_engines.Truns does not exist ; Turns
{turns: os.system} ; turns ; os.system is not among what may be built
{turns: own_engines.Odd} ; turns ; another kind ; JobEngine
{turns: {mark: 1}} ; turns ; plugins.yaml: sweep.engine.turns ; `NAME: module.Class`
[turns] ; turns ; plugins.yaml: sweep.engine ; module.Class
{local: own_engines.Turns} ; locl ; choices:  local, slurm, ray (nearest: local)
"""


def test_what_is_wrong_is_told(cli: Cli, own: Callable[[str], None]) -> None:
    rows = [line.split(" ; ") for line in WRONG.strip().splitlines()]
    rows = [(f"sweep.engine: {node}", name, words) for node, name, *words in rows]
    rows += [("sweep.engin: {turns: own_engines.Turns}", "turns", ["plugins.yaml", "nearest: sweep.engine"])]
    for file, name, words in [*rows, ("[", "turns", ["plugins.yaml: cannot be read"])]:
        own(file)
        done = cli("train", "-m", "data=wine", "seed=0,1", f"sweep.engine={name}")
        assert (done.code, "Traceback" in done.err) == (2, False)
        assert not [word for word in words if word not in done.err], done.err


def test_the_doctor_makes_checks_of_the_project(
    cli: Cli, own: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.doctor.checks.CHECKS", ())
    monkeypatch.setattr("sys.stdin", None)
    own("doctor: {rows: {_target_: own_engines.Rows, least: 10}, title: own_engines.titled}\n")
    done = cli("doctor", "data=wine", "name=mine")
    assert done.code == 0, done.err
    assert "rows to learn from" in done.out
    assert "mine" in done.out
    own("doctor: {rows: {_target_: own_engines.Rows, least: 1000}}\n")
    assert cli("doctor", "data=wine").code == 1
    for wrong, words in (("own_engines.Rowz", "does not exist"), ("os.system", "not among what may be built")):
        own(f"doctor: {{rows: {wrong}}}\n")
        done = cli("doctor", "data=wine")
        assert done.code == 2
        assert words in done.err


def test_a_finder_of_the_project(cli: Cli, own: Callable[[str], None]) -> None:
    own("find: {width: {_target_: own_engines.width, factor: 3}}\n")
    done = cli("find", "width", "data=wine", "model.hidden=[5]")
    assert done.code == 0, done.err
    assert "suggested: model.hidden=[15]" in done.out
    wrong = cli("find", "widht", "data=wine")
    assert wrong.code == 2
    assert "lr, batch, workers, rows, width (nearest: width)" in wrong.err
    assert "this is for lightkit find lr" in cli("find", "workers", "--low", "1").err


def test_a_template_of_the_project(cli: Cli, own: Callable[[str], None], project: Path) -> None:
    (project / "ours").mkdir()
    (project / "ours" / "NOTES.md").write_text("my-project begins here\n")
    module = "from pathlib import Path\nfrom lightkit.cli.new import Template\n\nclass Ours(Template):\n"
    (project / "own_templates.py").write_text(f"{module}    layers = (Path(__file__).parent / 'ours',)\n")
    own("new: {ours: own_templates.Ours}\n")
    done = cli("new", "fresh", "--from", "ours")
    assert done.code == 0, done.err
    assert (project / "fresh" / "NOTES.md").read_text() == "fresh begins here\n"
    wrong = cli("new", "other", "--from", "our")
    assert wrong.code == 2
    assert "text, ours (nearest: ours)" in wrong.err


def test_a_name_of_the_project_is_not_for_a_configuration_from_elsewhere(own: Callable[[str], None]) -> None:
    from lightkit.config.policy import Trust

    own("sweep.engine: {turns: own_engines.Turns}\n")
    assert not [*doors.problems_of("sweep.engine", "turns", Trust(roots=(Path.cwd(),)))]
    [(_, what, _)] = doors.problems_of("sweep.engine", "turns", Trust().of_stranger(()))
    assert "not among what may be built" in what


def test_a_package_adds_a_name_by_an_entry_point(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("sweep.engine.again", "lightkit.sweep.engines.local:LocalEngine", doors.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == doors.GROUP else [])
    monkeypatch.setattr(doors, "entry_points", doors.entry_points.__wrapped__)
    assert doors.names("sweep.engine") == ["local", "slurm", "ray", "again"]
    assert doors.load("sweep.engine", "again")[0].__name__ == "LocalEngine"


Process = Callable[..., Outcome]


CANARY = "from pathlib import Path\n\nPath(__file__).with_name('canary').touch()\n"


LAUNCHER = CANARY + textwrap.dedent(
    """
    from hydra.core.utils import JobReturn, JobStatus
    from hydra.plugins.launcher import Launcher


    class Quiet(Launcher):
        def setup(self, *, hydra_context, task_function, config): ...

        def launch(self, job_overrides, initial_job_idx):
            print(f"{len(job_overrides)} jobs")
            return [JobReturn(status=JobStatus.COMPLETED) for _ in job_overrides]
    """
)


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def canaries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("canary"))


@pytest.mark.thorough
def test_plugins_in_the_project_are_not_imported(project: Path, process: Process) -> None:
    put(project / "hydra_plugins" / "mine.py", CANARY)
    done = process("train", "--info", "plugins")
    assert done.code == 0
    assert "hydra_plugins.mine" not in done.out
    assert not canaries(project)


def test_a_received_run_that_one_stands_in_is_no_project(project: Path, process: Process, tmp_path: Path) -> None:
    run = tmp_path / "received"
    put(run / "config.yaml", process("config", "--resolve", "trust=[payload]").out)
    for inner in (run, run / "deeper"):
        put(inner / "hydra_plugins" / "mine.py", CANARY)
        put(inner / "payload.py", f"{CANARY}\n\nclass Net: ...\n")
        put(inner / "conf" / "config.yaml", "trust: [payload, hydra_plugins]\n")
        assert process("config", cwd=inner).code == 0
        done = process("train", "--from", str(run), "model._target_=payload.Net", cwd=inner)
        assert done.code == 2
        done = process("config", cwd=tmp_path, LIGHTKIT_PROJECT=str(inner))
        assert done.code == 2
        assert "a folder of a run, which is no project" in done.err
    assert not canaries(run)


def test_a_plugin_of_the_project_runs_when_it_is_named(project: Path, process: Process) -> None:
    put(project / "hydra_plugins" / "mine.py", LAUNCHER)
    put(project / "hydra_plugins" / "other.py", CANARY.replace("canary", "other"))
    put(project / "conf" / "hydra" / "launcher" / "quiet.yaml", "_target_: hydra_plugins.mine.Quiet\n")
    sweep = ["train", "-m", "data=wine", "seed=0,1", "hydra/launcher=quiet"]
    refused = process(*sweep)
    assert refused.code == 2
    assert "fix:      trust=[hydra_plugins.mine] on the command line" in refused.err
    assert not canaries(project)
    done = process(*sweep, "trust=[hydra_plugins.mine]")
    assert (done.code, done.out.splitlines()[-1]) == (0, "2 jobs")
    assert canaries(project)
    assert not (project / "hydra_plugins" / "other").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("package", ["payload.conf", "single"])
def test_a_package_on_the_search_path_is_read_and_not_imported(project: Path, process: Process, package: str) -> None:
    put(project / "payload" / "__init__.py", CANARY)
    put(project / "payload" / "conf" / "values" / "theirs.yaml", "# @package extra\nwidth: 77\n")
    put(project / "single.py", CANARY)
    text = f"defaults: [config, optional values: theirs]\nhydra:\n  searchpath: [pkg://{package}]\n"
    put(project / "conf" / "start.yaml", text)
    done = process("config", "--config-name", "start")
    assert done.code == 0, done.err
    assert not canaries(project)
    assert ("width: 77\n" in done.out) == (package == "payload.conf")


def test_what_counts_as_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    target = tmp_path / "target"
    put(target / "hydra_plugins" / "theirs" / "__init__.py", "")
    assert not is_installed(str(target))
    put(target / "theirs-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    put(target / "theirs-1.0.dist-info" / "RECORD", "hydra_plugins/theirs/__init__.py,,\n")
    assert is_installed(str(target))
    monkeypatch.chdir(target)
    assert not is_installed(str(target))
    assert not is_installed("")
    assert is_installed(str(Path(hydra.__file__).parents[1]))
    assert is_installed("__editable__.theirs-1.0.finder.__path_hook__")
    assert not is_installed(str(project))
