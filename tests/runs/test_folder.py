"""The folder of a run: beginning in it, and its record. What two processes do to each other is in tests/faults."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from lightkit.common.errors import UserError
from lightkit.common.ledger import Ledger
from lightkit.config import compose
from lightkit.runs.code import own_modules
from lightkit.runs.folder import RunFolder, changed_code, differences, writing
from lightkit.runs.record import installed
from tests.conftest import Outcome

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("name", ["manifest.json", "step-00000010.pt"])
def test_a_new_run_does_not_start_where_one_has_saved(tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / name).write_text("")
    message = r"the folder already holds a run[\s\S]*lightkit resume"
    with pytest.raises(UserError, match=message), RunFolder(tmp_path).begun(fresh=True):
        pass
    with RunFolder(tmp_path).begun():
        pass


def test_what_kills_have_left_is_no_run_and_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint.unfinished").touch()  # of a first save
    for name in (".result.json.ab12_xyz", ".overrides.yaml.12345678", ".result.json.backup-of-mine", ".notes"):
        (tmp_path / name).touch()
    with RunFolder(tmp_path).begun(fresh=True):
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {".lock", ".result.json.backup-of-mine", ".notes", "checkpoints"}


def test_the_record_repeats_the_run_and_forgets_the_result_of_an_earlier_part(tmp_path: Path) -> None:
    place, cfg = RunFolder(tmp_path), compose(["data=wine"]).cfg
    place.write_result({"status": "finished"})
    place.record(cfg, ["data=wine", "extra.x='${oc.env:TOKEN}'"], device="cpu", data="f00")
    assert not (tmp_path / "result.json").exists()
    assert (tmp_path / "config.yaml").exists()
    assert "${oc.env:TOKEN}" in (tmp_path / "overrides.yaml").read_text()
    assert place.facts()["device"] == "cpu"
    assert place.facts()["data"] == "f00"


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = r"cannot write: Not a directory[\s\S]*hydra\.run\.dir=FOLDER writes elsewhere"
    with pytest.raises(UserError, match=message), RunFolder(tmp_path / "file" / "run").begun():
        pass
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


def test_a_run_that_is_there_is_not_sent_elsewhere(tmp_path: Path) -> None:
    def refused(path: Path) -> UserError:
        with pytest.raises(UserError) as caught, writing(path):
            raise OSError(30, "Read-only file system")
        return caught.value

    found = refused(tmp_path / "output.log")
    assert (found.what, found.fix) == ("cannot write: Read-only file system", "hydra.run.dir=FOLDER writes elsewhere")
    (tmp_path / "config.yaml").touch()
    assert refused(tmp_path / "output.log").fix is refused(tmp_path).fix is None


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
    *("metrics.jsonl", ".lock", "result.json", "finetune.json", "events.out.tfevents.1.host", "figures"),
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


@pytest.mark.parametrize("name", ["run.log", "metrics.jsonl", ".mark", "checkpoints"])
def test_links_to_what_is_not_there_yet(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "none")
    with pytest.raises(UserError, match="leads out of the folder"), RunFolder(tmp_path / "run").begun():
        pass
    assert not (tmp_path / "none").exists()


def test_members_are_below_the_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    (run.path / "members").mkdir(parents=True)
    (run.path / "members" / "linked").symlink_to(tmp_path)
    for name in ("", "..", "../../mine", "a/b", "/tmp", "linked"):
        with pytest.raises(UserError):
            run.member(name)
    assert run.member("00-seed=1").path == run.path / "members" / "00-seed=1"


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


TASK = """
from lightkit.trainer.tasks import Supervised

class Scaled(Supervised):
    def step(self, model, batch, criterion):
        out = super().step(model, batch, criterion)
        return out._replace(loss=out.loss * 0.01)
"""


def test_a_factor_that_was_changed_in_a_task_is_named_before_training(
    process: Callable[..., Outcome], project: Path
) -> None:
    (project / "scaling.py").write_text(TASK)
    args = ("data=wine", "model=mlp", "model.hidden=[4]", "trainer.epochs=2", "metrics.figures=[]", "trainer.stop_at=1")
    first = process("train", *args, "trainer.task._target_=scaling.Scaled", "hydra.run.dir=run")
    assert (first.code, "has changed" in first.out) == (0, False)
    noted = json.loads((project / "run" / "environment.json").read_text())
    assert "scaling" in noted["modules"]
    assert len(noted["packages"]) > 30
    noted["packages"]["omegaconf"] = "0.1"
    (project / "run" / "environment.json").write_text(json.dumps(noted))
    (project / "scaling.py").write_text(TASK.replace("0.01", "10"))
    other = process("resume", "run", "trainer.stop_at=null")
    assert other.code == 0, other.err
    line = "the code of scaling (trainer.task) has changed since the earlier part of the run"
    assert other.out.index(line) < other.out.index("\nepoch ")
    assert other.out.count("differs") == 1
    assert "omegaconf differs: 0.1 before" in other.out
    assert line in (project / "run" / "run.log").read_text()


def test_only_ones_own_modules_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch._inductor.written", "unknown", "known", "known.part"):  # a package may have no file
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules[name].__file__ = str(tmp_path / f"{name}.py") if name != "known" else None
    modules = {*own_modules()}
    assert {"unknown", "known.part"} <= modules
    assert not {name.partition(".")[0] for name in modules} & {"lightkit", "torch", "json", "numpy"}


def test_all_keys_that_name_something_of_a_module_are_told() -> None:
    plain = {"model": {"_target_": "mine.Net"}, "trainer": {"callbacks": {"a": {"_target_": "mine.A"}}}}
    assert changed_code({"mine": "1", "gone": "2"}, {"mine": "3", "new": "4"}, plain) == [
        "the code of mine (model, trainer.callbacks.a) has changed since the earlier part of the run"
    ]


def test_many_changed_packages_are_counted() -> None:
    before = {"modules": {}, "packages": {f"p{i:02}": "1" for i in range(40)}}
    first, *_, last = differences(before, {"packages": {f"p{i:02}": "2" for i in range(40)}})
    assert (first, last) == ("p00 differs: 1 before, 2 now", "28 further packages differ")
    old = {"packages": {"torch": "1"}}
    assert differences(old, {"packages": {"torch": "1", "aiohttp": "3"}}) == []


def test_versions_are_read_from_names_of_folders(tmp_path: Path) -> None:
    for name in ("hydra_core-1.3.2.dist-info", "Old.Pkg-0.5-py3.11.egg-info", "torch", "x-y.dist-info"):
        (tmp_path / name).mkdir()
    assert installed((str(tmp_path), str(tmp_path / "lost"))) == {"hydra-core": "1.3.2", "old-pkg": "0.5"}
