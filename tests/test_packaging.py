"""The wheel: what is in it, and that it works in an empty folder without the repository."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from packaging.specifiers import SpecifierSet

import lightkit
from tests.without_extras.sitecustomize import required_by

ROOT = Path(__file__).resolve().parents[1]

BUILD = """\
import os, sys, tarfile
from hatchling.build import build_sdist, build_wheel

folder = sys.argv[1]
with tarfile.open(os.path.join(folder, build_sdist(folder))) as archive:
    archive.extractall(os.path.join(folder, "sources"), filter="data")
os.chdir(os.path.join(folder, "sources", *os.listdir(os.path.join(folder, "sources"))))
build_wheel(folder)
"""
"""What `python -m build --no-isolation` asks of the build backend, by one process in place of three."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source archive as an index would get both."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
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
    """A command of the installed package, where nothing is installed but what it requires."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{installed}:{ROOT / 'tests' / 'without_extras'}",
        "REQUIRED_OF": str(installed),
    }
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
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / "lightkit").rglob("*") if path.is_file()}
    assert {name for name in own if "__pycache__" not in name} <= packed, (
        "pages and other data lie beside their modules"
    )
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
    assert in_empty_folder(installed, tmp_path, "--help").stdout.startswith("lightkit 0.")
    extra = in_empty_folder(installed, tmp_path, "train", "model=timm", "data=shapes", "model.name=resnet18")
    assert (extra.returncode, 'pip install "lightkit[vision]"' in extra.stderr) == (2, True), extra.stderr
    explained = in_empty_folder(installed, tmp_path, "explain", "LK101")
    assert explained.stdout.startswith("LK101: Unknown key"), explained.stderr
    trained = in_empty_folder(installed, tmp_path, "train", "data=wine", "trainer.epochs=1", "device=cpu")
    assert trained.returncode == 0, trained.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    assert len(list((tmp_path / "outputs").glob("runs/*/*/result.json"))) == 1


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(packed.read(name))


@pytest.mark.slow
def test_the_metadata_are_what_an_index_takes(wheel: Path) -> None:
    found, table = metadata_of(wheel), project_table()
    one = {name: found[name] for name in ("Name", "Version", "License-Expression", "Description-Content-Type")}
    assert [*one.values()] == ["lightkit", lightkit.__version__, "MIT", "text/markdown"]
    assert found["Metadata-Version"] in ("2.3", "2.4")
    assert 0 < len(found["Summary"]) < 100
    assert "\n" not in found["Summary"]
    assert found.get_all("License-File") == ["LICENSE"]
    assert {*(found.get_all("Classifier") or ())} <= {*pytest.importorskip("trove_classifiers").classifiers}
    assert {*(found.get_all("Provides-Extra") or ())} == {*table["optional-dependencies"]}
    named = " ".join(found.get_all("Requires-Dist") or ())
    assert "@" not in named, "an index refuses requirements by address"
    assert wheel.stat().st_size < 10_000_000
    assert re.fullmatch(r"lightkit-[\d.]+-py3-none-any\.whl", wheel.name)
    archive = next(wheel.parent.glob("*.tar.gz"))
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "hatch_build.py", "docs/images/terminal.svg"} <= names


def links(page: str) -> tuple[list[str], list[str]]:
    """Addresses of the links and of the pictures on a page, as a Markdown renderer reads it."""
    html = MarkdownIt("commonmark").enable("table").render(page)
    return re.findall(r'href="([^"]*)"', html), re.findall(r'src="([^"]*)"', html)


@pytest.mark.slow
def test_the_page_of_an_index_has_no_link_into_the_repository(wheel: Path) -> None:
    page = str(metadata_of(wheel).get_payload())
    addresses, pictures = links(page)
    assert page.startswith("# lightkit\n")
    assert [text for text in (*addresses, *pictures) if not text.startswith("https://")] == []
    assert "<!--" not in page
    html = MarkdownIt("commonmark").enable("table").render(page)
    assert (html.count("<h1>"), html.count("<table>") > 1, html.count("<pre>") > 10) == (1, True, True)
    assert not re.search(r"\]\((?!https)", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def test_with_a_repository_links_and_pictures_lead_to_its_tag() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(ROOT / "hatch_build.py"))["description"](text, "https://example.org/a/lightkit", "1.2")
    addresses, pictures = links(page)
    ours = [text for text in (*addresses, *pictures) if text.startswith("https://example.org/")]
    assert len(pictures) == 2
    assert {text.rpartition("/v1.2/")[0] for text in pictures} == {"https://example.org/a/lightkit/raw"}
    assert len(ours) > 15
    assert [text for text in ours if not (ROOT / text.rpartition("/v1.2/")[2].partition("#")[0]).exists()] == []


def test_make_train_installs_what_training_needs_and_make_test_the_rest(tmp_path: Path) -> None:
    for name in ("python", "lightkit"):
        fake = tmp_path / "venv" / "bin" / name
        fake.parent.mkdir(parents=True, exist_ok=True)
        fake.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/log\n')
        fake.chmod(0o755)

    def ran(target: str) -> list[str]:
        (tmp_path / "log").write_text("")
        command = ["make", target, f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}", "ARGS=-x"]
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return (tmp_path / "log").read_text().splitlines()

    install = "python -m pip install --quiet -c constraints.txt -e"
    assert ran("train") == [f"{install} .", "lightkit train -x"]
    assert ran("train") == ["lightkit train -x"]
    with_extras, tests = ran("test")
    assert with_extras.startswith(f"{install} .[dev,")
    assert tests.startswith("python -m pytest")
    assert [line for line in ran("test-fast") if "pip" in line] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_repository_holds_nothing_that_somebody_has_tried() -> None:
    known = ".ci .gitignore CHANGELOG.md LICENSE Makefile README.md benchmarks conf constraints.txt docs examples"
    known += " experiments hatch_build.py lightkit mkdocs.yml outputs pyproject.toml templates tests"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name.partition("/")[0] for name in listed.splitlines()} <= {*known.split()}


def test_an_extra_of_the_tests_is_one_of_the_package() -> None:
    named = re.search(r"^EXTRAS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert named is not None
    assert {*named[1].split(",")} <= {*project_table()["optional-dependencies"]}


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
    assert pinned == sorted(pinned)


@pytest.mark.slow
def test_each_pinned_package_is_needed_and_fits_the_pythons_it_is_pinned_for() -> None:
    table = project_table()
    wanted = [*table["dependencies"], *(text for extra in table["optional-dependencies"].values() for text in extra)]
    needed, missing = required_by(wanted)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0]: line for line in lines if not line.startswith("#")}
    installed = [name for name in pinned if not missing or name in needed]  # what extras that are not there need
    assert [name for name in installed if name not in needed] == []
    for name in set(installed) & needed.keys():
        pythons = SpecifierSet(needed[name].metadata.get("Requires-Python") or "")
        assert pythons.contains("3.10.9") or "python_version" in pinned[name], f"{name} has no release for Python 3.10"


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
