"""`resume=auto`: the same command again goes on where the last one stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

CONFIG = "seed: 1\nname: demo\n"


def a_run(root: Path, name: str, *, status: str | None, config: str = CONFIG, saved: bool = True) -> Path:
    folder = root / "outputs" / "runs" / "2026-01-31" / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    if saved:
        (folder / "checkpoints" / "step-00000001.pt").write_bytes(b"")
    if status:
        (folder / "result.json").write_text(json.dumps({"status": status}))
    return folder


@pytest.mark.thorough
def test_the_same_command_goes_on_in_a_folder_of_its_choice(cli: Callable[..., object], project: Path) -> None:
    command = [
        "train",
        "data=wine",
        "model.hidden=[8]",
        "metrics.figures=[]",
        "logger=quiet",
        "resume=auto",
        f"hydra.run.dir={project}/fixed",
    ]
    first = cli(*command, "trainer.epochs=2")
    again = cli(*command, "trainer.epochs=4")
    assert (first.code, again.code) == (0, 0), again.err  # type: ignore[attr-defined]
    result = json.loads((project / "fixed" / "result.json").read_text())
    assert result["epochs"] == 4
    assert "resumed at step" in (project / "fixed" / "run.log").read_text()
    finished = cli(*command, "trainer.epochs=4")
    assert finished.code == 0  # type: ignore[attr-defined]
    assert "has finished already" in finished.out  # type: ignore[attr-defined]


def test_a_folder_that_is_named_by_the_time_is_found_again(cli: Callable[..., Outcome], project: Path) -> None:
    command = ("data=wine", "hydra.run.dir=outputs/${now:%Y}/${now:%f}")
    earlier = a_run(project, "12-00-00-demo", status=None, config=cli("config", *command).out)
    done = cli("train", *command, "resume=auto")
    assert done.code == 5, done.err  # it goes on there, and that checkpoint is empty
    assert str(earlier.name) in done.err
