from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common.doors import SHIPPED, import_path
from lightkit.config.project import shipped_templates
from tests.conftest import ROOT, Outcome

Cli = Callable[..., Outcome]
PACKAGES = {"own": ["data.py", "model.py"], "csv": ["model.py"], "images": ["model.py"], "text": ["model.py"]}


def made(project: Path, name: str = "first-birds") -> Path:
    return project / name


@pytest.mark.parametrize("kind", SHIPPED["new"])
def test_a_project_composes_and_has_its_own_name_everywhere(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    done = cli("new", "first-birds", "--from", kind)
    assert (done.code, done.err) == (0, "")
    assert "cd first-birds\n" in done.out
    folder = made(project)
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    assert {".gitignore", "README.md", "conf/config.yaml", "deploy.py", "experiments/baseline.yaml"} <= {*files}
    assert {"predict.py", "tests/test_project.py"} <= {*files}
    for name in PACKAGES.get(kind, []):
        assert f"first_birds/{name}" in files
    assert (folder / "first_birds").is_dir() == (kind in PACKAGES)
    texts = {name: file.read_text() for name, file in files.items() if file.suffix != ".png"}
    assert not [name for name, text in texts.items() if "my_project" in text or "my-project" in text]
    assert '"my_example"' not in texts["tests/test_project.py"]
    for word in import_path(SHIPPED["new"][kind]).example:
        assert f'"{word}"' in texts["tests/test_project.py"]
    assert texts["README.md"].startswith("# first-birds\n")
    monkeypatch.chdir(folder)
    for name in files:
        if name.startswith("experiments/"):
            composed = cli("train", "--cfg", "job", f"experiment={Path(name).stem}")
            assert (composed.code, composed.err) == (0, "")
            assert f"name: {Path(name).stem}\n" in composed.out


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "csv", "images", "timm", "text"])
def test_a_project_trains_deploys_and_predicts_by_its_own_test(cli: Cli, project: Path, kind: str) -> None:
    assert cli("new", "birds", "--from", kind).code == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=made(project, "birds"), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_nothing_is_written_over(cli: Cli, project: Path) -> None:
    (project / "birds").mkdir()
    (project / "birds" / "mine").touch()
    done = cli("new", "birds")
    assert done.code == 2
    assert "this is there already" in done.err
    assert [path.name for path in (project / "birds").iterdir()] == ["mine"]
    (project / "empty").mkdir()
    assert cli("new", "empty").code == 0
    assert cli("new", "below/it/wrens").code == 0
    assert (project / "below/it/wrens/wrens/model.py").is_file()


def test_data_that_cannot_be_made_are_told_of(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Traceback\nModuleNotFoundError: No module named 'PIL'\n")

    monkeypatch.setattr(subprocess, "run", fails)
    done = cli("new", "birds", "--from", "images")
    assert done.code == 0
    assert "No module named 'PIL'" in done.err
    assert "  python make_data.py\n" in done.out


def test_scripts_of_a_project_say_what_comes_before_them(cli: Cli, project: Path) -> None:
    assert cli("new", "birds").code == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for script, message in {
        "deploy.py": "error: no run here",
        "predict.py": "there is no model.pt2; deploy.py writes it",
    }.items():
        words = [sys.executable, script, *(["1"] if script == "predict.py" else [])]
        done = subprocess.run(words, cwd=made(project, "birds"), env=environment, capture_output=True, text=True)
        assert done.returncode in (1, 2)
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_templates_hold_plain_files_only() -> None:
    kinds = {path.name for path in shipped_templates().iterdir()}
    assert kinds == {*SHIPPED["new"], "_common", "_mlp"}
