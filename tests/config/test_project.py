from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, signatures
from lightkit.config import project as places
from lightkit.config.project import beside
from lightkit.config.signatures import read


def test_the_nearest_folder_with_options_is_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTKIT_PROJECT", raising=False)
    (tmp_path / "a/conf").mkdir(parents=True)
    (tmp_path / "a/b/experiments").mkdir(parents=True)
    (tmp_path / "a/b/c").mkdir()
    monkeypatch.chdir(tmp_path / "a/b/c")
    assert places.project_root() == tmp_path / "a/b"
    monkeypatch.chdir(tmp_path / "a")
    assert places.project_root() == tmp_path / "a"
    monkeypatch.setenv("LIGHTKIT_PROJECT", str(tmp_path / "a/b"))
    assert places.project_root() == tmp_path / "a/b"
    monkeypatch.setenv("LIGHTKIT_PROJECT", str(tmp_path / "nope"))
    with pytest.raises(UserError, match="LIGHTKIT_PROJECT names no folder"):
        places.project_root()


def test_own_modules_hide_nothing(toy: Path) -> None:
    places.make_importable(toy)
    places.make_importable(toy)
    assert sys.path.count(str(toy)) == 1
    assert sys.path.index(str(toy)) > 0


def test_experiments_of_an_installed_package_join_those_of_the_project(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site/lightkit"
    for folder, name in ((package / "experiments/theirs", "Shipped"), (toy / "experiments/mine", "Own")):
        folder.mkdir(parents=True)
        (folder / "nets.py").write_text(f"class {name}:\n    def __init__(self, size): ...\n")
    monkeypatch.setattr(places, "_PACKAGE", package)
    places.make_importable(toy)
    for target in ("experiments.theirs.nets.Shipped", "experiments.mine.nets.Own"):
        signature = read(target)
        assert signature is not None
        assert signature.names() == ["size"]
        module, _, name = target.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
    assert str(package) not in sys.path


@pytest.mark.parametrize("file", ["sweep.jsonl", "conf/config.yaml"], ids=["of a sweep", "a run"])
def test_a_job_that_is_called_conf_makes_no_project_of_its_sweep(tmp_path: Path, file: str) -> None:
    sweep = tmp_path / "project" / "outputs" / "sweep"
    for folder in (tmp_path / "project" / "conf", sweep / "conf"):
        folder.mkdir(parents=True)
    assert places.project_of(sweep) == sweep
    (sweep / file).write_text("data: {}\nmodel: {}\n")
    assert places.project_of(sweep) == places.project_of(sweep / "conf") == tmp_path / "project"


def test_the_folder_of_a_run_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, run = tmp_path / "project", tmp_path / "project" / "received" / "run"
    for folder in (project, run, run / "below"):
        (folder / "conf").mkdir(parents=True)
    for place in (run, run / "below"):
        assert places.project_of(place) == place
    for text in ("a: [", "data: {}\n", "defaults: []\ndata: {}\nmodel: {}\n"):
        (run / "config.yaml").write_text(text)
        assert places.project_of(run) == run
    (run / "config.yaml").write_text("data: {}\nmodel: {}\n")
    for place in (run, run / "below"):
        assert places.project_of(place) == project
        monkeypatch.setenv("LIGHTKIT_PROJECT", str(place))
        with pytest.raises(UserError, match="names a folder of a run"):
            places.project_root()


@pytest.mark.thorough
@pytest.mark.parametrize("on_path", [False, True], ids=["script", "module"])
def test_a_module_in_a_folder_that_is_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool
) -> None:
    """As `python -m lightkit` the working directory is on the path, as `lightkit` it is not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIGHTKIT_PROJECT", raising=False)
    monkeypatch.setattr(sys, "path", [*(["."] if on_path else []), *sys.path])
    (tmp_path / "boxes_here.py").write_text("class Boxes: pass\n")
    signatures.clear()
    chosen = ["data=custom", "data.dataset._target_=boxes_here.Boxes"]
    with pytest.raises(UserErrors, match=r"boxes_here\.py is here, but this folder is no project: `mkdir conf` makes"):
        compose(chosen)
    (tmp_path / "conf").mkdir()
    signatures.clear()
    compose(chosen)


def test_a_module_below_the_folder_of_the_project(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy / "sub/deeper").mkdir(parents=True)
    (toy / "sub/deeper/boxes_here.py").write_text("class Boxes: pass\n")
    monkeypatch.chdir(toy / "sub/deeper")
    assert str(beside("boxes_here")).endswith(f"{toy}: did you mean sub.deeper.boxes_here?")
    assert beside("no_such") is None
    monkeypatch.chdir(toy)
    assert beside("toy") is None


def test_the_folder_of_a_run_is_no_project_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boxes_here.py").touch()
    assert beside("boxes_here") is not None
    (tmp_path / "config.yaml").write_text("data: {}\nmodel: {}\n")
    assert beside("boxes_here") is None
