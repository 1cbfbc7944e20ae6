from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Cli

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
    assert not (project / "outputs").exists()
    again = cli("train", "hydra.run.dir=elsewhere/here")
    assert (again.code, "already holds a run" in again.err) == (2, True)
    for text in ("mine/${now:%Y}-${name}", "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"):  # the last is Hydra's own
        assert cli("train", f"hydra.run.dir={text}").code == 0
    here, mine, own = (folder.relative_to(project) for _, folder, _ in runner.asked)
    assert here == Path("elsewhere/here")
    assert re.fullmatch(r"mine/\d{4}-digits_mlp", str(mine))
    assert re.fullmatch(r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d", str(own))


@pytest.mark.parametrize("place", ["experiment", pytest.param("project", marks=pytest.mark.thorough)])
def test_a_run_folder_that_looks_like_hydras_own_is_respected(cli: Cli, runner: Any, project: Path, place: str) -> None:
    folder, args = "outputs/${now:%Y}/mine-${name}", ["name=a"]
    file = project / "experiments/there.yaml" if place == "experiment" else project / "conf/config.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"hydra:\n  run:\n    dir: {folder}\n", encoding="utf-8")
    args += ["experiment=there"] if place == "experiment" else []
    assert cli("train", *args).code == 0
    assert runner.asked[0][1] == project / f"outputs/{datetime.now().astimezone().year}/mine-a"
    assert f"dir: {folder}" in cli("train", *args, "--cfg", "hydra").out


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


def test_a_run_folder_that_cannot_be(cli: Cli, project: Path) -> None:
    (project / "conf").mkdir()
    for typed, message in {
        "hydra.run.dir=.": "cannot be that of the project",
        "hydra.run.dir=..": "cannot be that of the project",
        "hydra.run.dir=conf/..": "cannot be that of the project",
        "hydra.run.dir=": "hydra.run.dir: a folder is missing",
        "resume=auto hydra.run.dir=": "hydra.run.dir: a folder is missing",
        "-m seed=0,1 hydra.sweep.dir=": "hydra.sweep.dir: a folder is missing",
        "hydra.run.dir=mine/${no_such_key}": "hydra.run.dir: cannot be worked out",
    }.items():
        done = cli("train", *typed.split())
        assert (done.code, message in done.err) == (2, True), done.err
    assert sorted(path.name for path in project.iterdir()) == ["conf", "experiments"]


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


def test_hydras_view_shows_the_folders_that_are_used(cli: Cli, project: Path) -> None:
    day = "${now:%Y-%m-%d}/${now:%H-%M-%S}"
    own = cli("train", "--cfg", "hydra", "data=wine").out
    assert f"dir: {project}/outputs/runs/{day}-wine_mlp\n" in own
    assert f"dir: {project}/outputs/sweeps/{day}-wine_mlp\n" in own
    assert "hydra:" in cli("train", "--cfg", "all").out
    assert cli("train", "--cfg", "hydra", "hydra.run.dir=here", "-p", "hydra.run.dir").out == "here\n"


@pytest.mark.usefixtures("runner")
def test_hydras_view_of_a_run(cli: Cli) -> None:
    assert cli("train", "hydra.run.dir=here").code == 0
    (Path("here") / "config.yaml").write_text(cli("train", "--cfg", "job", "--resolve").out)
    done = cli("train", "--from", "here", "--cfg", "hydra")
    assert (done.code, "no part for Hydra" in done.err) == (2, True)


def test_hydras_help_and_info(cli: Cli) -> None:
    assert "override" in cli("train", "--hydra-help").out
    assert str(ROOT / "conf") in cli("train", "--info", "searchpath").out


def test_a_folder_that_is_named_by_the_time_is_found_again(cli: Cli, project: Path) -> None:
    command = ("data=wine", "hydra.run.dir=outputs/${now:%Y}/${now:%f}")
    earlier = project / "outputs" / "runs" / "2026-01-31" / "12-00-00-demo"
    (earlier / "checkpoints").mkdir(parents=True)
    (earlier / "config.yaml").write_text(cli("config", *command).out)
    (earlier / "checkpoints" / "step-00000001.pt").write_bytes(b"")
    done = cli("train", *command, "resume=auto")
    assert (done.code, earlier.name in done.err) == (5, True), done.err  # it goes on there, and finds it empty


@pytest.mark.thorough
def test_the_same_command_goes_on_in_a_folder_of_its_choice(cli: Cli, project: Path) -> None:
    command = ["train", *TINY, "metrics.figures=[]", "logger=quiet", "resume=auto", f"hydra.run.dir={project}/fixed"]
    for epochs in (1, 2):
        assert cli(*command, f"trainer.epochs={epochs}").code == 0
    assert json.loads((project / "fixed" / "result.json").read_text())["epochs"] == 2
    assert "resumed at step" in (project / "fixed" / "run.log").read_text()
    assert "has finished already" in cli(*command, "trainer.epochs=2").out
