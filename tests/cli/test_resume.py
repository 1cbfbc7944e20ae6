from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.arguments import options_of
from lightkit.runner import trace, verify
from lightkit.runner.verify import run_job
from lightkit.runs.lock import boot_id
from lightkit.sweep.job import Job
from lightkit.sweep.journal import Journal
from tests.conftest import Cli
from tests.resume.harness import forked
from tests.runner.finished_runs import trained


def test_leave_for_another_rate_is_for_that_rate(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, list[str]]] = []
    monkeypatch.setattr(
        "lightkit.cli.train.start", lambda cfg, *_, **__: seen.append((cfg.optim.lr, [*cfg.resume.override])) or 0
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


def test_all_that_was_lost_goes_on_and_nothing_else(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    monkeypatch.setattr("lightkit.cli.train.Child", Ended)
    assert cli("resume", "-d", "--all-lost").code == 2
    resumed = [["resume", "-d", str(outputs / name)] for name in ("lost", "other")]
    assert sorted(started) == [*resumed, ["sweep", "resume", "-d", str(sweep)]]
    monkeypatch.chdir(tmp_path)
    none = cli("resume", "-d", "--all-lost")
    assert (none.code, none.out.startswith("no run has ended with its machine\nthis folder is no project")) == (0, True)


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has paused after its first epoch."""
    return trained(tmp_path_factory.mktemp("paused") / "run", "device=cpu", "trainer.epochs=2", "trainer.stop_at=1")


def test_a_damaged_configuration_is_taken_from_the_newest_checkpoint(
    cli: Cli, project: Path, paused: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(paused, project / "run"))
    file = folder / "config.yaml"
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\xff\xfe\x00" + whole, b"- 1\n- 2\n", whole + b"\n]: {", None):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        caplog.clear()
        assert cli("params", "run").code == 0
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

    (project / "theirs.py").write_text("raise RuntimeError('the code of somebody else has run')\n")
    folder = Path(shutil.copytree(paused, project / "run"))
    (folder / "config.yaml").unlink()
    (folder / ".mark").unlink(missing_ok=True)
    (folder / "checkpoints" / "manifest.json").unlink()
    for path in folder.glob("checkpoints/step-*.pt"):
        content = torch.load(path, weights_only=True)
        content["config"] = re.sub(r"lightkit\.models\.[\w.]*MLP\b", "theirs.Net", content["config"])
        torch.save(content, path)
        assert "theirs.Net" in content["config"]
    done = cli("resume", "run")
    assert (done.code, "theirs" in done.err, "trust" in done.err) == (2, True, True)
    assert "somebody else has run" not in done.err


QUICK = ["data=wine", "model.hidden=[8]", "data.batch_size=16", "device=cpu", "metrics.figures=[]"]


def in_a_fork(file: Path, *, want: int = 0) -> None:
    """In place of a new process, which takes seconds to start."""
    forked(lambda: run_job(file), file.with_suffix(".log"), want=want)


@pytest.mark.thorough
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_what_is_the_same_ends_with_status_0(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verify, "run_in_process", in_a_fork)
    done = cli("verify-resume", *QUICK, "--at", "12", "--phase", "save", *more)
    assert done.code == 0, done.err
    assert "2/3 running again" in done.err
    assert not list(tmp_path.glob("lightkit-verify-*"))
    parts = ["model", "optimizer", "scheduler", "precision", "ema", "callbacks", "metrics", "state"]
    parts += ["metrics.jsonl", "TensorBoard", "result.json"]
    if more:
        found = json.loads(done.out[done.out.rindex("\n{\n") :])  # the jobs print before it here
        assert (found["same"], found["killed"]["step"], found["reason"]) == (True, 12, None)
        assert [(part["name"], part["different"]) for part in found["compared"]] == [(name, False) for name in parts]
        return
    assert "24 steps, killed at moment" in done.out
    assert "the same again: --at 12 --phase save" in done.out
    assert [line.split()[0] for line in done.out.splitlines() if line.endswith("  same")] == parts
    assert "the same bits with and without the kill" in done.out


def test_the_phases_are_those_of_the_trace() -> None:
    assert tuple(options_of("verify-resume")["--phase"].words) == trace.PHASES
