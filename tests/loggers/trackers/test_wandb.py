"""Weights & Biases: the real client, offline and with a server that records what it gets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.loggers.trackers.reading import RUN, SHORT, Offline, logged
from tests.loggers.trackers.server import Server, serving

Process = Callable[..., Outcome]
WANDB = (*SHORT, "logger=wandb")
OFFLINE = (*WANDB, "logger.more.wandb.offline=true")
KILL, SHOWS = "trainer.callbacks.kill._target_=mine.Kill", "trainer.callbacks.shows._target_=mine.Shows"
KEY = "0123456789abcdef" * 3
HASTY = "trainer.callbacks.hasty._target_=hasty.Hasty"


def test_a_run_that_was_killed_is_whole_in_one_folder(own: Path, process: Process) -> None:
    more = (
        "metrics.figures=[confusion_matrix]",
        "logger.more.wandb.tags=[first]",
        "logger.more.wandb.files=['*.yaml']",
    )
    assert process("train", *OFFLINE, *more, KILL, SHOWS, f"hydra.run.dir={RUN}", WANDB_API_KEY=KEY).code == -9
    ended = process("resume", RUN, WANDB_API_KEY=KEY)
    assert (ended.code, "wandb:" in ended.out + ended.err) == (0, False), ended
    found = Offline(own / RUN)
    assert found.rows() == logged(own / RUN)
    steps = [row["_step"] for row in found.history()]
    assert steps == sorted({*steps})
    assert {
        "extra/note": [16, 24],
        "extra/pictures": [16, 24],
        "extra/weights": [16, 24],
    }.items() <= found.media().items()
    assert found.media()["test/confusion_matrix"] == [24]
    assert found.config()["optim"]["lr"] == 0.001
    assert (found.run().project, [*found.run().tags], found.run().run_id) == ("lightkit", ["first"], told_id(own))
    assert (found.summary()["status"], found.exit_code()) == ("finished", 0)
    best = max(row["val/accuracy"] for row in logged(own / RUN) if "val/accuracy" in row)
    assert found.summary()["best/val/accuracy"] == best
    assert (found.folder / "files/one/config.yaml").exists()
    assert not [path for path in (own / "outputs").rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def told_id(own: Path) -> str:
    return json.loads((own / RUN / "trackers/wandb.json").read_text())["id"]


def surroundings(server: Server) -> dict[str, str]:
    return {"WANDB_BASE_URL": server.address, "WANDB_API_KEY": KEY, "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "0.1"}


@pytest.mark.thorough(first=0)
def test_online_the_server_has_each_row_once_after_a_kill(own: Path, process: Process) -> None:
    with serving() as server:
        online = surroundings(server)
        kill = f"trainer.callbacks.kill={{_target_: mine.Kill, server: '{server.address}'}}"
        assert process("train", *WANDB, kill, f"hydra.run.dir={RUN}", **online).code == -9
        before = server.steps()
        assert len(logged(own / RUN)) == len(before)
        paused = process("resume", RUN, "trainer.stop_at=2", **online)
        assert paused.code == 0, paused.err
        assert server.only()["state"]["exitcode"] == 1
        assert process("resume", RUN, "trainer.stop_at=null", **online).code == 0
        assert server.rows() == logged(own / RUN)
        assert server.steps()[: len(before)] == before
        assert server.only()["state"]["exitcode"] == 0
        finished = server.rows()  # with the test of a run that goes on all the same: the server keeps it
        changed = process("resume", RUN, "trainer.epochs=4", **online)
        assert changed.code == 0, changed.err
        assert server.rows() == [*finished, *logged(own / RUN)[len(finished) - 1 :]]


@pytest.mark.thorough(first=0)
def test_rows_of_a_part_that_was_taken_back_stay_on_the_server_and_are_told(own: Path, process: Process) -> None:
    with serving() as server:
        online = surroundings(server)
        kill = f"trainer.callbacks.kill={{_target_: mine.Kill, server: '{server.address}'}}"
        assert process("train", *WANDB, kill, f"hydra.run.dir={RUN}", **online).code == -9
        before = len(server.rows())
        ended = process("resume", RUN, "optim.lr=0.1", "resume.override=[optim.lr]", **online)
        assert ended.code == 0, ended.err
        assert "are of a part that the run has taken back" in ended.err
        kept = [row for row in logged(own / RUN) if row["step"] < 9]
        assert server.rows()[: len(kept)] == kept
        assert server.rows()[before:] == logged(own / RUN)[-len(server.rows()) + before :]
        finished, count = server.rows(), len(logged(own / RUN))
        assert process("resume", RUN, "trainer.epochs=4", **online).code == 0
        assert server.rows() == [*finished, *logged(own / RUN)[count - 1 :]]


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["nobody answers", "no key"])
def test_a_run_that_cannot_be_online_is_kept_for_later(own: Path, process: Process, where: str) -> None:
    key = {"WANDB_API_KEY": KEY} if where == "nobody answers" else {}
    ended = process("train", *WANDB, HASTY, f"hydra.run.dir={RUN}", WANDB_BASE_URL="http://127.0.0.1:9", **key)
    assert ended.code == 0, ended.err
    assert Offline(own / RUN).rows() == logged(own / RUN)
    assert ended.err.count("wandb is not online") == 1
    assert f"wandb sync {own / RUN}/trackers/wandb/offline-run-" in ended.err


@pytest.mark.thorough(first=0)
def test_what_is_kept_while_the_server_is_gone_joins_what_it_has(own: Path, process: Process) -> None:
    with serving() as server:
        online = surroundings(server)
        assert process("train", *WANDB, "trainer.stop_at=2", f"hydra.run.dir={RUN}", **online).code == 0
        server.gone = True
        ended = process("resume", RUN, "trainer.stop_at=null", HASTY, **online)
        assert ended.code == 0, ended.err
        server.gone = False
        line = ended.err.partition("this uploads the run: ")[2].split()
        assert line[:4] == ["wandb", "sync", "--id", told_id(own)], ended.err
        subprocess.run([sys.executable, "-m", *line, "--yes"], env={**os.environ, **online}, check=True, cwd=own)
        assert server.rows() == logged(own / RUN)


@pytest.mark.thorough(first=0)
def test_two_processes_write_once(own: Path, process: Process) -> None:
    ended = process("train", *OFFLINE, "device.parallel=ddp", "device.nproc=2", f"hydra.run.dir={RUN}")
    assert ended.code == 0, ended.err
    assert Offline(own / RUN).rows() == logged(own / RUN)


@pytest.mark.thorough(first=0)
def test_a_full_disk_is_told_and_ends_no_run(own: Path, process: Process) -> None:
    assert process("train", *OFFLINE, "trainer.stop_at=1", f"hydra.run.dir={RUN}").code == 0
    place = own / RUN / "trackers"
    kept = (place / "wandb.json").read_bytes()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be made here")
    try:
        (place / "wandb.json").write_bytes(kept)
        ended = process("resume", RUN, "trainer.stop_at=null")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    assert ended.code == 0, ended.err
    assert "No space left on device" in ended.err
    assert "Logging error" not in ended.err
    assert len([line for line in ended.err.splitlines() if line.strip()]) < 6, ended.err


@pytest.mark.thorough(first=0)
def test_what_the_server_misses_at_the_end_is_told(own: Path, process: Process) -> None:
    with serving() as server:
        online = surroundings(server)
        leave = f"trainer.callbacks.leave={{_target_: mine.Leave, server: '{server.address}'}}"
        ended = process("train", *WANDB, HASTY, leave, f"hydra.run.dir={RUN}", **online)
        assert ended.code == 0, ended.err
        assert "this uploads the rest: wandb sync" in ended.err


@pytest.mark.thorough
def test_jobs_and_members_are_groups(own: Path, process: Process) -> None:
    swept = process("train", "-m", *OFFLINE, "trainer.epochs=1", "seed=1,2", "hydra.sweep.dir=outputs/sweeps/two")
    assert swept.code == 0, swept.err
    jobs = [
        Offline(folder).run()
        for folder in sorted((own / "outputs/sweeps/two").iterdir())
        if (folder / "trackers").is_dir()
    ]
    assert [(run.run_group, run.job_type) for run in jobs] == [("sweeps/two", "job")] * 2
    size = ("ensemble=voting", "ensemble.size=2", "trainer.epochs=1", f"hydra.run.dir={RUN}")
    assert process("train", *OFFLINE, *size).code == 0
    members = [Offline(folder) for folder in sorted((own / RUN / "members").iterdir())]
    assert [(one.run().run_group, one.run().job_type) for one in members] == [("runs/one", "member")] * 2
    assert [one.rows() for one in members] == [logged(folder) for folder in sorted((own / RUN / "members").iterdir())]
    whole = Offline(own / RUN)
    assert (whole.summary()["status"], len({whole.run().run_id, *(one.run().run_id for one in members)})) == (
        "finished",
        3,
    )


def test_a_key_is_found_where_login_keeps_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightkit.loggers.trackers.wandb import has_key

    assert not has_key("https://api.wandb.ai")
    (own / "netrc").write_text("machine api.wandb.ai login user password x\n")
    assert has_key("https://api.wandb.ai")
    assert not has_key("https://elsewhere.example")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert has_key("https://elsewhere.example")


def test_a_missing_package_and_a_mistyped_key_are_told_before_the_run(
    own: Path, cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = cli("train", *WANDB, "logger.more.wandb.projekt=mine")
    assert (refused.code, "logger.more.wandb.project" in refused.err) == (2, True), refused.err
    monkeypatch.setattr("lightkit.loggers.trackers.base.find_spec", lambda name: None)
    refused = cli("train", *WANDB)
    assert (refused.code, "pip install 'lightkit[wandb]'" in refused.err) == (2, True), refused.err
    assert not (own / "outputs").exists()
