"""The folder of a run: beginning in it, and its record. What two processes do to each other is in tests/faults."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.common.ledger import Ledger
from lightkit.config import compose
from lightkit.runs.folder import RunFolder, differences, unwritable
from lightkit.runs.lock import lock_holder, locked
from tests.conftest import Outcome

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

HOLD = """
import sys
from pathlib import Path
from lightkit.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).begun():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["manifest.json", "step-00000010.pt"])
def test_a_new_run_does_not_start_where_one_has_saved(tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / name).write_text("")
    message = r"the folder already holds a run[\s\S]*lightkit resume"
    with pytest.raises(UserError, match=message), RunFolder(tmp_path).begun(fresh=True):
        pass
    with RunFolder(tmp_path).begun():
        pass


def test_a_first_save_that_was_cut_off_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint.unfinished").write_text("")
    with RunFolder(tmp_path).begun(fresh=True):
        pass


def test_what_kills_have_left_is_cleared_away(tmp_path: Path) -> None:
    for name in (".result.json.ab12_xyz", ".overrides.yaml.12345678", ".result.json.backup-of-mine", ".notes"):
        (tmp_path / name).touch()
    with RunFolder(tmp_path).begun():
        assert {path.name for path in tmp_path.iterdir()} == {".lock", ".result.json.backup-of-mine", ".notes"}


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = r"cannot write: Not a directory[\s\S]*hydra\.run\.dir=FOLDER writes elsewhere"
    with pytest.raises(UserError, match=message), RunFolder(tmp_path / "file" / "run").begun():
        pass


def test_the_record_repeats_the_run_and_forgets_the_result_of_an_earlier_part(tmp_path: Path) -> None:
    place, cfg = RunFolder(tmp_path), compose(["data=wine"]).cfg
    place.write_result({"status": "finished"})
    place.record(cfg, ["data=wine", "extra.x='${oc.env:TOKEN}'"], device="cpu", data="f00")
    assert not (tmp_path / "result.json").exists()
    assert (tmp_path / "config.yaml").exists()
    assert "${oc.env:TOKEN}" in (tmp_path / "overrides.yaml").read_text()
    assert place.facts()["device"] == "cpu"
    assert place.facts()["data"] == "f00"


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "environment.json").mkdir()
    with pytest.raises(UserError, match="cannot write: Is a directory"):
        RunFolder(tmp_path).record(compose(["data=wine"]).cfg, [])


def test_differences_name_what_may_change_the_numbers() -> None:
    before = {"data": "a", "device": "cpu", "time": "1", "packages": {"torch": "2.14", "gone": "1"}}
    now = {"data": "b", "device": "cpu", "time": "2", "packages": {"torch": "2.15"}}
    assert differences(before, now) == [
        "data differs: a before, b now",
        "torch differs: 2.14 before, 2.15 now",
        "gone differs: 1 before, None now",
    ]


def test_unwritable_says_why() -> None:
    assert "cannot write: Permission denied" in str(unwritable(Path("x"), PermissionError(13, "Permission denied")))


def test_rows_before_a_checkpoint(tmp_path: Path) -> None:
    rows = [{"step": step, "a": float(number)} for number, step in enumerate([1, 2, 4, 4, 4, 5])]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert RunFolder(tmp_path).rows_before(4, 4, Ledger.of(rows[:4])) == rows[:4]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_rows_of_a_checkpoint_that_knows_only_their_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 5}\n{"step": 6}\n')
    assert RunFolder(tmp_path).rows_before(4, 3, Ledger()) == [{"step": 1}]
    assert "2 of 3 rows are missing" in caplog.text
    (tmp_path / "metrics.jsonl").unlink()
    assert RunFolder(tmp_path).rows_before(4, 3, Ledger()) == []
    assert "3 of 3 rows are missing" in caplog.text


def test_a_file_with_lines_of_somebody_else_is_kept_beside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, folder = tmp_path / "metrics.jsonl", RunFolder(tmp_path)
    for name in ("metrics.changed1.jsonl", "metrics.changed2.jsonl"):
        path.write_text('{"step": 1}\nmy own note\n\n{"step": 2}\n{"step": 9')
        assert folder.rows_before(2, 2, Ledger.of([{"step": 1}, {"step": 2}])) == [{"step": 1}, {"step": 2}]
        assert (tmp_path / name).read_text() == path.read_text()
        assert f"1 line cannot be read; as it is, it is kept as {name}" in caplog.text


NAMES = (
    *(".lock", "run.log", "metrics.jsonl", "result.json", "environment.json", "overrides.yaml"),
    *("finetune.json", "adapter.pt", "events.out.tfevents.1.host", "checkpoints", "figures", "profile"),
    *("checkpoints/checkpoint.unfinished", "checkpoints/manifest.json", "figures/val", "profile/summary.txt"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_through_a_link_in_the_folder(
    cli: Callable[..., Outcome], tmp_path: Path, name: str
) -> None:
    victim, link = tmp_path / "victim", Path("got") / name
    if "." in name:
        victim.write_text("mine")
    else:
        victim.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    refusal = cli("train", "data=wine", "trainer.steps=1", "hydra.run.dir=got")
    assert refusal.code == 2, refusal.err
    assert f"{link}: this link leads out of the folder of the run" in refusal.err
    assert str(victim) in refusal.err
    assert (victim.read_text() == "mine") if victim.is_file() else not any(victim.iterdir())
    assert [path for path in Path("got").rglob("*") if not path.is_dir() and path != link] == []


def test_files_that_have_another_name_elsewhere_are_left_alone(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    Path("got").mkdir()
    for name in (".lock", "run.log", "metrics.jsonl"):
        (tmp_path / name).write_text("mine\n")
        os.link(tmp_path / name, Path("got") / name)
    assert cli("train", "data=wine", "trainer.steps=1", "hydra.run.dir=got").code == 0
    assert [(tmp_path / name).read_text() for name in (".lock", "run.log", "metrics.jsonl")] == ["mine\n"] * 3
    assert Path("got/run.log").read_text().startswith("mine\n20")


def test_links_within_the_folder_and_to_it_are_the_users(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    Path("outputs").symlink_to(tmp_path / "disk")
    Path("outputs/run/saved").mkdir(parents=True)
    Path("outputs/run/checkpoints").symlink_to("saved")
    run = cli("train", "data=wine", "trainer.steps=1", "hydra.run.dir=outputs/run")
    assert run.code == 0, run.err
    assert any((tmp_path / "disk/run/saved").glob("step-*.pt"))


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs in the folder."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def locked_by_others(folder: Path) -> bool:
    """Whether a process that is forked now could not lock the folder."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            with (folder / ".lock").open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_a_folder_is_made_and_locked_while_the_run_goes_on(tmp_path: Path) -> None:
    place = RunFolder(tmp_path / "a" / "b")
    with place.begun():
        assert (tmp_path / "a" / "b" / ".lock").read_text().startswith(f"process {os.getpid()} on ")
        assert locked_by_others(place.path)
    assert not locked_by_others(place.path)


def test_a_second_run_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with RunFolder(tmp_path).begun():
        with pytest.raises(UserError, match="is running in this folder"), RunFolder(tmp_path).begun():
            pass
        assert locked_by_others(tmp_path)


def test_reading_the_lock_file_does_not_end_the_lock(tmp_path: Path) -> None:
    with RunFolder(tmp_path).begun():
        (tmp_path / ".lock").read_bytes()
        assert locked_by_others(tmp_path)


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    read, write = os.pipe()
    with RunFolder(tmp_path).begun():
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)  # until the test is over
            os._exit(0)
    try:
        assert not locked_by_others(tmp_path)
    finally:
        os.close(read)
        os.close(write)
        os.waitpid(pid, 0)


def test_the_lock_ends_when_the_run_fails(tmp_path: Path) -> None:
    place = RunFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), place.begun():
        raise ZeroDivisionError
    assert not locked_by_others(tmp_path)


def test_another_process_is_named_and_let_in_later(tmp_path: Path) -> None:
    with held(tmp_path) as process:
        message = rf"process {process.pid} on .* is running in this folder[\s\S]*wait for it or end it"
        with pytest.raises(UserError, match=message) as caught, RunFolder(tmp_path).begun():
            pass
        assert caught.value.exit_code == 75
        process.kill()
        process.wait()
        with RunFolder(tmp_path).begun():
            assert f"process {os.getpid()}" in (tmp_path / ".lock").read_text()


@pytest.mark.parametrize("left", [b"", b"process 1 on elsewhere", b"\xff\xfe" * 100])
def test_a_stale_lock_file_is_taken_over(tmp_path: Path, left: bytes) -> None:
    (tmp_path / ".lock").write_bytes(left)
    with RunFolder(tmp_path).begun():
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_file_system_without_locks_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with RunFolder(tmp_path).begun():
        pass


def test_who_runs_in_a_folder_can_be_asked(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    with held(tmp_path) as process:
        assert str(lock_holder(tmp_path)).startswith(f"process {process.pid} on ")
        process.kill()
        process.wait()
    assert (tmp_path / ".lock").exists()
    assert lock_holder(tmp_path) is None


def test_asking_does_not_take_the_lock_nor_end_it(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert lock_holder(tmp_path)
        assert locked_by_others(tmp_path)
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        pass


def test_a_run_that_starts_while_somebody_asks_waits_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, asked = fcntl.flock, [BlockingIOError(errno.EAGAIN, "asking")] * 2

    def busy(*arguments: object) -> None:
        if asked:
            raise asked.pop()
        flock(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", busy)
    with locked(tmp_path):
        assert locked_by_others(tmp_path)


def test_nobody_knows_of_a_folder_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".lock").touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert lock_holder(tmp_path) is None
