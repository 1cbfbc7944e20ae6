from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Outcome

Cli = Callable[..., Outcome]
TINY = ("data=wine", "trainer.epochs=1", "device=cpu", "model.hidden=[4]")


def run_folders(project: Path) -> list[Path]:
    return sorted((project / "outputs").glob("runs/*/*"))


def test_a_run_gets_a_folder_of_its_own(cli: Cli, runner: Any, project: Path) -> None:
    assert [cli("train", "name=first try", "seed=3").code for _ in range(2)] == [0, 0]
    folders = run_folders(project)
    assert len(folders) == 2
    assert all(re.search(r"/outputs/runs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-first-try(-2)?$", str(f)) for f in folders)
    assert sorted(folder for _, folder, _ in runner.asked) == folders
    assert runner.asked[0][2] == (False, "name=first try", "seed=3")


def test_hydra_run_dir_is_respected(cli: Cli, runner: Any, project: Path) -> None:
    assert cli("train", "hydra.run.dir=elsewhere/here").code == 0
    assert runner.asked[0][1] == project / "elsewhere" / "here"
    assert not (project / "outputs").exists()
    again = cli("train", "hydra.run.dir=elsewhere/here")
    assert again.code == 2
    assert "already holds a run" in again.err


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["command line", "experiment", "project"])
def test_a_run_folder_that_looks_like_hydras_own_is_respected(cli: Cli, runner: Any, project: Path, place: str) -> None:
    folder, args = "outputs/${now:%Y}/mine-${name}", ["name=a"]
    text = f"hydra:\n  run:\n    dir: {folder}\n"
    if place == "command line":
        args.append(f"hydra.run.dir={folder}")
    elif place == "experiment":
        (project / "experiments/there.yaml").write_text(text, encoding="utf-8")
        args.append("experiment=there")
    else:
        (project / "conf").mkdir()
        (project / "conf/config.yaml").write_text(text, encoding="utf-8")
    assert cli("train", *args).code == 0
    year = datetime.now().astimezone().year
    assert runner.asked[0][1] == project / f"outputs/{year}/mine-a"
    shown = cli("train", *args, "--cfg", "hydra").out
    assert f"dir: {folder}" in shown


def test_hydras_own_text_is_respected_when_it_is_set(cli: Cli, runner: Any, project: Path) -> None:
    assert cli("train", "hydra.run.dir=outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}").code == 0
    assert runner.asked[0][1].parents[1] == project / "outputs"


def test_a_run_from_another_goes_where_the_project_says(cli: Cli, runner: Any, project: Path) -> None:
    assert cli("train", *TINY, "hydra.run.dir=outputs/a").code == 0
    (project / "outputs/a/config.yaml").write_text(cli("config", *TINY).out, encoding="utf-8")
    (project / "conf").mkdir()
    (project / "conf/config.yaml").write_text("hydra: {run: {dir: 'outputs/${now:%Y}/b'}}\n", encoding="utf-8")
    assert cli("train", "--from", "outputs/a").code == 0
    assert cli("train", "--from", "outputs/a", "hydra.run.dir=outputs/${now:%Y}/c").code == 0
    (project / "conf/config.yaml").write_text("hydra: {run: {dir: 'outputs/${seed}-${optim.lr}'}}\n", encoding="utf-8")
    assert cli("train", "--from", "outputs/a", "seed=7", "optim.lr=0.25").code == 0
    assert [folder.name for _, folder, _ in runner.asked] == ["a", "b", "c", "7-0.25"]


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [".", "..", "conf/.."])
def test_a_run_is_not_written_over_the_project(cli: Cli, project: Path, folder: str) -> None:
    (project / "conf").mkdir()
    done = cli("train", f"hydra.run.dir={folder}")
    assert done.code == 2
    assert "cannot be that of the project" in done.err
    assert not (project / "config.yaml").exists()


@pytest.mark.thorough
def test_a_run_folder_that_refers_to_nothing(process: Cli) -> None:
    odd = process("train", "hydra.run.dir=mine/${no_such_key}")
    assert odd.code == 2
    assert "hydra.run.dir: cannot be worked out" in odd.err


@pytest.mark.thorough
@pytest.mark.parametrize("args", [[], ["resume=auto"], ["-m", "seed=0,1"]])
def test_a_folder_without_a_name_is_not_the_working_directory(cli: Cli, project: Path, args: list[str]) -> None:
    kind = "sweep" if "-m" in args else "run"
    done = cli("train", *args, f"hydra.{kind}.dir=")
    assert done.code == 2
    assert f"hydra.{kind}.dir: a folder is missing" in done.err
    assert not (project / "config.yaml").exists()


def test_the_time_in_hydra_run_dir(cli: Cli, runner: Any, project: Path) -> None:
    done = cli("train", "hydra.run.dir=mine/${now:%Y}-${name}")
    assert done.code == 0, done.err
    assert re.fullmatch(r"mine/\d{4}-digits_mlp", str(runner.asked[0][1].relative_to(project)))


def test_outputs_go_to_the_project_from_any_folder_below(
    cli: Cli, runner: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert cli("train").code == 0
    assert run_folders(project) == [runner.asked[0][1]]


def test_unwritable_outputs(cli: Cli, runner: Any, project: Path) -> None:
    (project / "outputs").write_text("in the way")
    done = cli("train")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert runner.asked == []


@pytest.mark.usefixtures("runner")
def test_a_run_that_cannot_start_leaves_nothing(cli: Cli, project: Path) -> None:
    done = cli("train", "+extra.fail=true")
    assert (done.code, done.err) == (2, "error: data: the data has a hole\nmore: lightkit explain LK203\n")
    assert list(project.iterdir()) == [project / "experiments"]


def test_cfg_job_prints_what_would_run(cli: Cli, project: Path) -> None:
    done = cli("train", "--cfg", "job", "seed=7", "name=x${seed}")
    assert done.code == 0
    assert "\nseed: 7" in done.out
    assert "name: x${seed}" in done.out
    assert not (project / "outputs").exists()
    resolved = cli("train", "seed=7", "name=x${seed}", "--cfg=job", "--resolve", "--package", "name")
    assert resolved.out == "x7\n"
    assert cli("train", "--cfg", "job", "-p", "optim").out.count("_target_: torch.optim.AdamW\n") == 1


def test_config_dir_joins_the_options(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "more" / "optim").mkdir(parents=True)
    (tmp_path / "more" / "optim" / "mine.yaml").write_text("# Mine.\n_target_: torch.optim.SGD\nlr: 0.125\n")
    done = cli("train", "--cfg", "job", "--config-dir", str(tmp_path / "more"), "optim=mine", "-p", "optim.lr")
    assert done.out == "0.125\n"
    missing = cli("train", "--cfg", "job", "--config-dir", str(tmp_path / "none"))
    assert missing.code == 2
    assert "--config-dir" in missing.err


def test_a_users_project_joins_and_wins(cli: Cli, project: Path) -> None:
    (project / "conf" / "optim").mkdir(parents=True)
    (project / "conf" / "optim" / "adamw.yaml").write_text("_target_: torch.optim.AdamW\nlr: 0.5\n")
    (project / "experiments" / "mine.yaml").write_text("# Mine.\nseed: 9\n")
    done = cli("train", "--cfg", "job", "experiment=mine", "--resolve")
    assert "\nseed: 9" in done.out
    assert "lr: 0.5" in done.out


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["hydra", "all"])
def test_hydras_own_view(cli: Cli, kind: str) -> None:
    done = cli("train", "--cfg", kind)
    assert done.code == 0, done.err
    assert "hydra:" in done.out


def test_hydras_view_shows_the_folders_that_are_used(cli: Cli, project: Path) -> None:
    day = "${now:%Y-%m-%d}/${now:%H-%M-%S}"
    own = cli("train", "--cfg", "hydra", "data=wine").out
    assert f"dir: {project}/outputs/runs/{day}-wine_mlp\n" in own
    assert f"dir: {project}/outputs/sweeps/{day}-wine_mlp\n" in own
    assert cli("train", "--cfg", "hydra", "hydra.run.dir=here", "-p", "hydra.run.dir").out == "here\n"


@pytest.mark.usefixtures("runner")
def test_hydras_view_of_a_run(cli: Cli) -> None:
    assert cli("train", "hydra.run.dir=here").code == 0
    (Path("here") / "config.yaml").write_text(cli("train", "--cfg", "job", "--resolve").out)
    done = cli("train", "--from", "here", "--cfg", "hydra")
    assert done.code == 2
    assert "no part for Hydra" in done.err


def test_info_into_a_closed_pipe_is_quiet(project: Path) -> None:
    code = (
        "import os, sys; from lightkit.cli import main; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
        "sys.exit(main(['train', '--info', 'defaults']))"
    )
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.thorough
def test_hydras_help_and_info(cli: Cli) -> None:
    assert "override" in cli("train", "--hydra-help").out
    assert str(ROOT / "conf") in cli("train", "--info", "searchpath").out


@pytest.mark.thorough
@pytest.mark.slow
def test_the_whole_way(process: Callable[..., Outcome], cli: Cli, project: Path) -> None:
    first = process("train", *TINY, "seed=1")
    assert first.code == 0, first.err
    assert "Traceback" not in first.err
    (folder,) = run_folders(project)
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["epochs"]) == ("finished", 1)
    assert "finished" in cli("runs").out

    again = cli("train", "--from", "last", f"hydra.run.dir={project / 'again'}")
    assert again.code == 0, again.err
    repeated = json.loads((project / "again" / "result.json").read_text())
    assert repeated["test"] == result["test"]

    longer = cli("resume", str(folder), "trainer.epochs=2")
    assert longer.code == 0, longer.err
    assert json.loads((folder / "result.json").read_text())["epochs"] == 2

    measured = cli("eval", str(folder), "--split", "val")
    assert measured.code == 0, measured.err
    assert json.loads((folder / "eval-val.json").read_text())["metrics"]
    predicted = cli("predict", str(folder), "--output", "-")
    assert predicted.code == 0, predicted.err
    assert len(predicted.out.splitlines()) > 30


CONFIG = "seed: 1\nname: demo\n"


def a_run(root: Path, name: str, *, status: str | None, config: str = CONFIG, saved: bool = True) -> Path:
    folder = root / "outputs" / "runs" / "2026-01-31" / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    if saved:
        (folder / "checkpoints" / "step-00000001.pt").write_bytes(b"")
    if status:
        (folder / "result.json").write_text(json.dumps({"status": status}))
    return folder


@pytest.mark.thorough
def test_the_same_command_goes_on_in_a_folder_of_its_choice(cli: Callable[..., object], project: Path) -> None:
    command = [
        "train",
        "data=wine",
        "model.hidden=[8]",
        "metrics.figures=[]",
        "logger=quiet",
        "resume=auto",
        f"hydra.run.dir={project}/fixed",
    ]
    first = cli(*command, "trainer.epochs=2")
    again = cli(*command, "trainer.epochs=4")
    assert (first.code, again.code) == (0, 0), again.err  # type: ignore[attr-defined]
    result = json.loads((project / "fixed" / "result.json").read_text())
    assert result["epochs"] == 4
    assert "resumed at step" in (project / "fixed" / "run.log").read_text()
    finished = cli(*command, "trainer.epochs=4")
    assert finished.code == 0  # type: ignore[attr-defined]
    assert "has finished already" in finished.out  # type: ignore[attr-defined]


def test_a_folder_that_is_named_by_the_time_is_found_again(cli: Callable[..., Outcome], project: Path) -> None:
    command = ("data=wine", "hydra.run.dir=outputs/${now:%Y}/${now:%f}")
    earlier = a_run(project, "12-00-00-demo", status=None, config=cli("config", *command).out)
    done = cli("train", *command, "resume=auto")
    assert done.code == 5, done.err  # it goes on there, and that checkpoint is empty
    assert str(earlier.name) in done.err
