from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.arguments import options_of
from lightkit.runner import trace, verify
from lightkit.runner.verify import run_job
from lightkit.runs.lock import boot_id
from lightkit.sweep.job import Job
from lightkit.sweep.journal import Journal
from tests.conftest import Outcome
from tests.resume.harness import forked

Cli = Callable[..., Outcome]


def test_leave_for_another_rate_is_for_that_rate(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, list[str]]] = []
    monkeypatch.setattr(
        "lightkit.cli.resume.start", lambda cfg, *_, **__: seen.append((cfg.optim.lr, [*cfg.resume.override])) or 0
    )
    (project / "run").mkdir()
    shown = cli("train", "--cfg", "job", "optim.lr=0.1", "resume.override=[optim.lr,'model.*']")
    (project / "run" / "config.yaml").write_text(shown.out)
    for typed in ([], ["optim.lr=0.5"], ["optim.lr=0.5", "resume.override=[optim.lr]"]):
        assert cli("resume", "run", *typed).code == 0
    assert seen == [(0.1, ["optim.lr", "model.*"]), (0.5, ["model.*"]), (0.5, ["optim.lr"])]


def earlier(project: Path, place: str) -> None:
    (project / "outputs" / place).mkdir(parents=True)
    (project / "outputs" / place / "config.yaml").write_text("name: run\n")


def left_behind(folder: Path, boot: str | None) -> None:
    """Let the holder of a lock have ended without giving it up."""
    facts = {"pid": 1, "host": socket.gethostname(), "boot": boot, "born": 1}
    (folder / ".lock").write_text(f"process 1 on here\n{json.dumps(facts)}\n")


def test_all_that_was_lost_goes_on_and_nothing_else(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, sweep = project / "outputs", project / "outputs" / "sweeps" / "2026-01-31" / "13-00-00-many"
    for place in ("lost", "died", "other", "sweeps/2026-01-31/13-00-00-many/job"):
        earlier(project, place)
    with Journal(sweep) as journal:
        journal.head(options={})
        journal.plan([Job("job", sweep / "job", (), "")])
    for folder in (outputs / "lost", outputs / "other", sweep, sweep / "job"):
        left_behind(folder, "of another day")
    left_behind(outputs / "died", boot_id())
    started = list[list[str]]()

    class Ended:
        def __init__(self, command: list[str], **_options: object) -> None:
            started.append(command[3:])
            self.code = 2 if command[-1].endswith("other") else 0

        def wait(self) -> int:
            return self.code

    monkeypatch.setattr("lightkit.cli.resume.Child", Ended)
    assert cli("resume", "-d", "--all-lost").code == 2
    resumed = [["resume", "-d", str(outputs / name)] for name in ("lost", "other")]
    assert sorted(started) == [*resumed, ["sweep", "resume", "-d", str(sweep)]]


def test_after_a_reboot_one_is_told_that_this_folder_is_no_project(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("resume", "-d", "--all-lost")
    assert done.code == 0
    assert done.out.startswith("no run has ended with its machine\nthis folder is no project")


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has paused after its first epoch."""
    from lightkit.config import compose
    from lightkit.runner import Runner

    folder = tmp_path_factory.mktemp("paused") / "run"
    small = ["data=wine", "model.hidden=[4]", "trainer.epochs=2", "device=cpu", "metrics.figures=[]", "logger=quiet"]
    Runner(compose([*small, "trainer.stop_at=1"]).cfg, folder).run()
    return folder


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "binary": lambda content: b"\xff\xfe\x00" + content,
    "no mapping": lambda content: b"- 1\n- 2\n",
    "unreadable YAML": lambda content: content + b"\n]: {",
}


@pytest.mark.parametrize("how", list(DAMAGES))
def test_a_damaged_configuration_is_taken_from_the_newest_checkpoint(
    cli: Cli, project: Path, paused: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = project / "run"
    shutil.copytree(paused, folder)
    file = folder / "config.yaml"
    damaged = DAMAGES[how](file.read_bytes())
    file.unlink() if damaged is None else file.write_bytes(damaged)
    assert cli("eval", "run").code == 0
    assert "config.yaml is damaged or missing" in caplog.text
    assert "its content is taken from step-0000000" in caplog.text
    done = cli("resume", "run", "trainer.stop_at=null")
    assert done.code == 0, done.err
    assert json.loads((folder / "result.json").read_text())["epochs"] == 2
    assert "epochs: 2" in file.read_text()  # it is whole again


def test_a_configuration_from_a_checkpoint_is_trusted_no_more_than_its_file(
    cli: Cli, project: Path, paused: Path
) -> None:
    """That of a run from elsewhere, which has no mark of this user's, must be named before its code runs."""
    import torch

    folder = project / "run"
    (project / "theirs.py").write_text("raise RuntimeError('the code of somebody else has run')\n")
    shutil.copytree(paused, folder)
    (folder / "config.yaml").unlink()
    shutil.rmtree(folder / ".mark", ignore_errors=True)
    (folder / ".mark").unlink(missing_ok=True)
    (folder / "checkpoints" / "manifest.json").unlink()
    for path in folder.glob("checkpoints/step-*.pt"):
        content = torch.load(path, weights_only=True)
        content["config"] = re.sub(r"lightkit\.models\.[\w.]*MLP\b", "theirs.Net", content["config"])
        torch.save(content, path)
        assert "theirs.Net" in content["config"]
    done = cli("resume", "run")
    assert done.code == 2
    assert "theirs" in done.err
    assert "trust" in done.err
    assert "somebody else has run" not in done.err


QUICK = ["data=wine", "model.hidden=[8]", "data.batch_size=16", "device=cpu", "metrics.figures=[]"]


def in_a_fork(file: Path, *, want: int = 0) -> None:
    """In place of a new process, which takes seconds to start."""
    forked(lambda: run_job(file), file.with_suffix(".log"), want=want)


@pytest.mark.thorough
def test_a_table_and_status_0(cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verify, "run_in_process", in_a_fork)
    done = cli("verify-resume", *QUICK, "--at", "12", "--phase", "save")
    assert done.code == 0, done.err
    assert "24 steps, killed at moment" in done.out
    assert "the same again: --at 12 --phase save" in done.out
    assert [line.split()[0] for line in done.out.splitlines() if line.endswith("  same")] == [
        *("model", "optimizer", "scheduler", "precision", "ema", "callbacks", "metrics", "state"),
        *("metrics.jsonl", "TensorBoard", "result.json"),
    ]
    assert "the same bits with and without the kill" in done.out
    assert "2/3 running again" in done.err
    assert not list(tmp_path.glob("lightkit-verify-*"))


@pytest.mark.thorough
def test_the_same_as_json(cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verify, "run_in_process", in_a_fork)
    done = cli("verify-resume", *QUICK, "--at", "12", "--phase", "save", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out[done.out.rindex("\n{\n") :])  # the jobs print before it here
    assert (found["same"], found["killed"]["step"], found["reason"]) == (True, 12, None)
    assert not any(part["different"] for part in found["compared"])


@pytest.mark.thorough
def test_a_difference_is_named_with_status_1(
    cli: Callable[..., Outcome], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verify, "run_in_process", in_a_fork)
    (project / "experiments" / "noisy_rows.py").write_text(
        "import numpy, torch\n"
        "class Noisy(torch.utils.data.Dataset):\n"
        "    def __init__(self):\n"
        "        self.rng, self.targets = numpy.random.default_rng(0), torch.arange(80) % 2\n"
        "    def __len__(self):\n"
        "        return 80\n"
        "    def __getitem__(self, row):\n"
        "        return torch.full((4,), float(self.rng.normal())), self.targets[row]\n"
    )
    options = ["data=custom", "data.dataset._target_=experiments.noisy_rows.Noisy", "data.batch_size=8", "device=cpu"]
    done = cli("verify-resume", *options, "model.hidden=[8]", "--keep")
    assert done.code == 1, done.err
    assert "DIFFERENT: the batch of step" in done.out
    assert "a generator of its own whose state is in no checkpoint" in done.out
    kept = Path(done.out.rpartition("kept in ")[2].strip())
    assert (kept / "whole" / "result.json").exists()


def test_the_phases_are_those_of_the_trace() -> None:
    assert tuple(options_of("verify-resume")["--phase"].words) == trace.PHASES
