"""The wheel: what is in it, and that it works in an empty folder without the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Without isolation: nothing is downloaded.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what installing the wheel puts into site-packages."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return target


def in_empty_folder(installed: Path, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "lightkit", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_wheel_holds_every_option_and_experiment(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = [
        path for name in ("conf", "experiments", "templates") for path in (ROOT / name).rglob("*") if path.is_file()
    ]
    ours = {f"lightkit/{path.relative_to(ROOT).as_posix()}" for path in tracked if "__pycache__" not in path.parts}
    assert ours <= packed
    assert "lightkit/docs/reference/errors.md" in packed
    assert not [
        name for name in packed if name.startswith(("tests/", "conf/", "experiments/", "templates/", "outputs/"))
    ]
    assert not [name for name in packed if "__pycache__" in name]
    assert [name for name in packed if name.endswith("entry_points.txt")]


@pytest.mark.thorough
@pytest.mark.slow
def test_wheel_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    shown = in_empty_folder(installed, tmp_path, "train", "--cfg", "job", "data=wine")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "name: wine_mlp" in shown.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import lightkit; print(lightkit.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(installed))
    explained = in_empty_folder(installed, tmp_path, "explain", "LK101")
    assert explained.stdout.startswith("LK101: Unknown key"), explained.stderr
    trained = in_empty_folder(installed, tmp_path, "train", "data=wine", "trainer.epochs=1", "device=cpu")
    assert trained.returncode == 0, trained.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    assert len(list((tmp_path / "outputs").glob("runs/*/*/result.json"))) == 1


def project_table() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_constraints_hold_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    pattern = re.compile(r'[a-z0-9-]+==[\w.]+( ; python_version >= "3\.\d+")?')
    assert [line for line in pinned if not pattern.fullmatch(line)] == []
    of_platform = [line for line in pinned if line.startswith(("nvidia-", "cuda-"))]
    assert [line for line in of_platform if not line.startswith("nvidia-ml-py=")] == []  # which is plain Python


def test_every_dependency_is_pinned() -> None:
    table = project_table()
    extras = table["optional-dependencies"]
    wanted = [*table["dependencies"], *extras["dev"], *extras["vision"], *extras["docs"]]
    names = {re.split(r"[<>=~! \[]", requirement)[0].lower() for requirement in wanted}
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert names - {line.partition("==")[0] for line in text.splitlines()} == set()


def test_every_dependency_has_a_lower_bound() -> None:
    table = project_table()
    wanted = [*table["dependencies"], *(text for extra in table["optional-dependencies"].values() for text in extra)]
    assert [text for text in wanted if ">=" not in text] == []


def test_makefile_names_an_older_python(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo Python 3.8.0; exit 0; fi\nexit 1\n')
    old.chmod(0o755)
    command = ["make", "train", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "lightkit needs Python 3.10 or newer" in done.stdout
    assert "Python 3.8.0" in done.stdout
    assert not (tmp_path / "venv").exists()


def test_make_lists_its_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("train", "test", "test-fast", "check", "board", "clean"):
        assert f"make {target} " in done.stdout
