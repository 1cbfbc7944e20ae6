from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.runs.reading import read_facts, read_metrics, read_overrides, read_result, read_run, read_seed
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


@pytest.mark.thorough
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


@pytest.mark.parametrize("text", [None, "", "{", "[1]"])
def test_facts_that_cannot_be_read_are_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "environment.json").write_text(text)
    assert read_facts(tmp_path) == {}


def test_metrics_without_the_torn_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "a": 2.0}) + '\n{"step": 2, "a')
    assert read_metrics(tmp_path) == [{"step": 1, "a": 2.0}]


@pytest.mark.parametrize(("text", "expected"), [(None, {}), ("{", {}), ("[1]", {}), ('{"epochs": 3}', {"epochs": 3})])
def test_a_result_that_cannot_be_read_is_empty(tmp_path: Path, text: str | None, expected: object) -> None:
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    assert read_result(tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, []), ("[]\n", []), ('- "data=wine"\n- "a=\'b\'"\n', ["data=wine", "a='b'"]), ("- {", [])],
)
def test_overrides(tmp_path: Path, text: str | None, expected: list[str]) -> None:
    if text is not None:
        (tmp_path / "overrides.yaml").write_text(text)
    assert read_overrides(tmp_path) == expected


@pytest.mark.parametrize(("text", "expected"), [(None, None), ("name: a\n", None), ("data:\n  seed: 3\nseed: 7\n", 7)])
def test_the_seed(tmp_path: Path, text: str | None, expected: int | None) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    assert read_seed(tmp_path) == expected
