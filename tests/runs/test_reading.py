from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.runs.reading import read_facts, read_metrics, read_overrides, read_result, read_run
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
    (elsewhere / "environment.json").write_text('{"folder": "/nowhere/at/all"}')
    with pytest.raises(UserErrors, match=rf"run the command in {tmp_path}\n"):
        read_run(elsewhere)
    (elsewhere / "environment.json").write_text(json.dumps({"folder": str(tmp_path / "home")}))
    with pytest.raises(UserErrors, match=rf"run the command in {tmp_path}\n"):
        read_run(elsewhere)


def test_other_mistakes_and_other_projects_are_left_alone(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserErrors) as mistaken:
        read_run(elsewhere, ["optim.lrr=1"])
    assert ["another project" in str(error) for error in mistaken.value.errors if error.key == "optim.lrr"] == [False]
    (tmp_path / "home" / "own_nets_of_home.py").unlink()
    monkeypatch.chdir(tmp_path / "home")
    with pytest.raises(UserErrors, match=r"model\._target_") as at_home:
        read_run(elsewhere)
    assert "another project" not in str(at_home.value)


def rows() -> Iterator[tuple[Callable[[Path], object], str, str | None, object]]:
    """A reader, the file that it reads, a content, and what is read; None is no file."""
    for text in (None, "", "{", "[1]"):
        yield read_facts, "environment.json", text, {}
        yield read_result, "result.json", text, {}
    yield read_result, "result.json", '{"epochs": 3}', {"epochs": 3}
    yield read_metrics, "metrics.jsonl", '{"step": 1, "a": 2.0}\n{"step": 2, "a', [{"step": 1, "a": 2.0}]
    for text in (None, "[]\n", "- {"):
        yield read_overrides, "overrides.yaml", text, []
    yield read_overrides, "overrides.yaml", '- "data=wine"\n- "a=\'b\'"\n', ["data=wine", "a='b'"]


@pytest.mark.parametrize(("read", "name", "text", "expected"), [*rows()])
def test_what_cannot_be_read_is_empty(
    tmp_path: Path, read: Callable[[Path], object], name: str, text: str | None, expected: object
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert read(tmp_path) == expected
