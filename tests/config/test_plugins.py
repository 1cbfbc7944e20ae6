"""Which code a composition imports: plugins of installed distributions, and what the user names."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import hydra
import pytest

from lightkit.config.doors import is_installed
from tests.conftest import Outcome

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
@pytest.mark.parametrize("args", [["config"], ["train", "--cfg", "job"], ["train", "--info", "plugins"]], ids=" ".join)
def test_plugins_in_the_project_are_not_imported(project: Path, process: Process, args: list[str]) -> None:
    put(project / "hydra_plugins" / "mine.py", CANARY)
    done = process(*args)
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
@pytest.mark.parametrize("package", ["payload", "payload.conf", "single"])
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
