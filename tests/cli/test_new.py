from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from lightkit.common.doors import SHIPPED, import_path
from lightkit.config.project import shipped_templates
from tests.conftest import ROOT, Cli
from tests.warm import Warm

OTHERS = ["own", "images", "timm", "text"]
PACKAGES = {"own": ["data.py", "model.py"], "csv": ["model.py"], "images": ["model.py"], "text": ["model.py"]}


@pytest.mark.parametrize("kind", ["csv", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in OTHERS)])
def test_a_project_composes_and_has_its_own_name_everywhere(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    done = cli("new", "first-birds", "--from", kind)
    assert (done.code, done.err, "cd first-birds\n" in done.out) == (0, "", True)
    folder = project / "first-birds"
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    assert {".gitignore", "README.md", "conf/config.yaml", "deploy.py", "experiments/baseline.yaml"} <= {*files}
    assert {"predict.py", "tests/test_project.py", *(f"first_birds/{name}" for name in PACKAGES.get(kind, []))} <= {
        *files
    }
    assert (folder / "first_birds").is_dir() == (kind in PACKAGES)
    texts = {name: file.read_text() for name, file in files.items() if file.suffix != ".png"}
    assert not [name for name, text in texts.items() if "my_project" in text or "my-project" in text]
    assert '"my_example"' not in texts["tests/test_project.py"]
    assert all(f'"{word}"' in texts["tests/test_project.py"] for word in import_path(SHIPPED["new"][kind]).example)
    assert texts["README.md"].startswith("# first-birds\n")
    monkeypatch.chdir(folder)
    for name in (Path(name).stem for name in files if name.startswith("experiments/")):
        composed = cli("train", "--cfg", "job", f"experiment={name}")
        assert (composed.code, composed.err, f"name: {name}\n" in composed.out) == (0, "", True)


def run(warm: Warm, folder: Path, module: str, *args: str) -> tuple[int, str]:
    """Exit status and output of a program in the folder of a project, which is forked from one that has torch."""
    with tempfile.TemporaryFile("w+") as log:
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        code = warm.start(args, folder, [log.fileno()] * 3, module=module, variables=variables).wait()
        log.seek(0)
        return code, log.read()


@pytest.mark.thorough(first=0)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", *OTHERS[1:], "csv"])
def test_a_project_trains_deploys_and_predicts_by_its_own_test(cli: Cli, project: Path, warm: Warm, kind: str) -> None:
    assert cli("new", "birds", "--from", kind).code == 0
    folder = project / "birds"
    for script, message in {
        "deploy.py": "error: no run here",
        "predict.py 1": "there is no model.pt2; deploy.py",
    }.items():
        code, text = run(warm, folder, "tests.docs.script", *script.split())
        assert (code in (1, 2), message in text, "Traceback" in text) == (True, True, False), text
    code, text = run(warm, folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert (code, "2 passed" in text) == (0, True), text


def test_nothing_is_written_over(cli: Cli, project: Path) -> None:
    (project / "birds").mkdir()
    (project / "birds" / "mine").touch()
    done = cli("new", "birds")
    assert (done.code, "this is there already" in done.err) == (2, True)
    assert [path.name for path in (project / "birds").iterdir()] == ["mine"]
    (project / "empty").mkdir()
    assert cli("new", "empty").code == 0
    assert cli("new", "below/it/wrens").code == 0
    assert (project / "below/it/wrens/wrens/model.py").is_file()


def test_data_that_cannot_be_made_are_told_of(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nModuleNotFoundError: No module named 'PIL'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    done = cli("new", "birds", "--from", "images")
    assert (done.code, "No module named 'PIL'" in done.err, "  python make_data.py\n" in done.out) == (0, True, True)
    assert {path.name for path in shipped_templates().iterdir()} == {*SHIPPED["new"], "_common", "_mlp"}
