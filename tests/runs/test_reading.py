from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.runs.reading import read_run
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
NET = "from torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n"


@pytest.fixture
def elsewhere(cli: Cli, project: Path, tmp_path: Path) -> Path:
    """A run with a model of its own, in another project than the one we are in."""
    home = tmp_path / "home"
    folder = home / "outputs" / "runs" / "2026-01-31" / "12-00-00-own"
    folder.mkdir(parents=True)
    (home / "conf").mkdir()
    (home / "own_nets_of_home.py").write_text(NET)
    text = cli("train", "--cfg", "job", "--resolve").out
    (folder / "config.yaml").write_text(text.replace("lightkit.models.MLP", "own_nets_of_home.Net"))
    return folder


def test_a_run_of_another_project_says_where_to_go(elsewhere: Path, tmp_path: Path) -> None:
    with pytest.raises(UserErrors, match=rf"model\._target_: (.|\n)*run the command in {tmp_path / 'home'}"):
        read_run(elsewhere)


def test_the_recorded_folder_counts_for_runs_that_were_moved(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "conf").rename(tmp_path / "conf")
    (elsewhere / "environment.json").write_text(json.dumps({"folder": str(tmp_path / "home")}))
    with pytest.raises(UserErrors, match=rf"run the command in {tmp_path}\n"):
        read_run(elsewhere)


@pytest.mark.parametrize("noted", ["{", '{"folder": "/nowhere/at/all"}', '{"folder": 3}'])
def test_a_useless_record_falls_back_to_the_place_of_the_run(elsewhere: Path, tmp_path: Path, noted: str) -> None:
    (elsewhere / "environment.json").write_text(noted)
    with pytest.raises(UserErrors, match=rf"run the command in {tmp_path / 'home'}"):
        read_run(elsewhere)


def test_other_mistakes_and_other_projects_are_left_alone(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserErrors) as found:
        read_run(elsewhere, ["optim.lrr=1"])
    assert ["another project" in str(error) for error in found.value.errors if error.key == "optim.lrr"] == [False]
    (tmp_path / "home" / "own_nets_of_home.py").unlink()
    monkeypatch.chdir(tmp_path / "home")
    with pytest.raises(UserErrors, match=r"model\._target_") as at_home:
        read_run(elsewhere)
    assert "another project" not in str(at_home.value)
