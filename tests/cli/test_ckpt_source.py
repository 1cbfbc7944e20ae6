"""What is given to `lightkit ckpt`: files, folders and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.checkpoint.weights import read_weights
from lightkit.cli.arguments import Parser
from lightkit.cli.ckpt import checkpoint_folder, find_source
from lightkit.cli.ckpt_convert import read_adapter_cfg, read_cfg, run_of
from lightkit.common.errors import UserError
from tests.cli.tuned_runs import Made, a_run


@pytest.fixture
def run(project: Path) -> Made:
    return a_run(project, "base")


def test_a_run_is_found_by_its_name_and_its_folder(run: Made) -> None:
    assert find_source("base") == find_source(str(run.folder)) == run.folder


def test_a_file_and_a_folder_that_is_no_run_are_taken_as_they_are(run: Made, project: Path) -> None:
    (project / "weights").mkdir()
    (project / "weights.pt").touch()
    assert find_source("weights") == Path("weights")
    assert find_source("weights.pt") == Path("weights.pt")


@pytest.mark.parametrize(("text", "message"), [("gone.pt", "gone.pt: no such file"), ("gone", "no run here")])
def test_what_is_not_there(run: Made, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_source(text)


def test_the_checkpoints_of_a_run_and_the_run_of_a_checkpoint(run: Made, tmp_path: Path) -> None:
    folder = run.folder / "checkpoints"
    assert checkpoint_folder(run.folder) == checkpoint_folder(folder) == folder
    assert checkpoint_folder(tmp_path) is None
    weights = read_weights(run.folder)
    assert run_of(weights) == run.folder
    elsewhere = tmp_path / "copy.pt"
    elsewhere.write_bytes(weights.path.read_bytes())
    assert run_of(read_weights(elsewhere)) is None


def test_the_configuration_of_a_run_is_for_the_device_that_is_asked_for(run: Made) -> None:
    assert read_cfg(run.folder).device.name == "cpu"
    assert read_cfg(run.folder, "auto").device.name == "auto"


@pytest.mark.parametrize("text", ["", "[1", "3"])
def test_an_adapter_without_a_configuration(tmp_path: Path, text: str) -> None:
    class Found:
        config = text

    with pytest.raises(UserError, match="there is no configuration in the adapter file") as caught:
        read_adapter_cfg(tmp_path / "adapter.pt", Found())  # type: ignore[arg-type]
    assert caught.value.exit_code == 5


def test_the_options_of_all_that_read_weights() -> None:
    found = Parser("ckpt inspect", "file").read(["last", "--key", "ema", "--trust"])
    assert (found.file, found.key, found.trust) == ("last", "ema", True)
