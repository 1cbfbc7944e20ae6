"""The whole way: train for an epoch, write the model as one file, predict with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = ["my_example"]
"""What `predict.py` is tried with."""
ROOT = Path(__file__).resolve().parents[1]


def run(*words: str) -> str:
    """Run a command in the project; returns what it printed."""
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one epoch."""
    folder = tmp_path_factory.mktemp("outputs") / "run"
    run("-m", "lightkit", "train", "experiment=baseline", "trainer.epochs=1", f"hydra.run.dir={folder}")
    return folder


def test_a_run_leaves_a_result(trained: Path) -> None:
    assert (trained / "result.json").is_file()


def test_the_model_predicts_without_lightkit(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    run("deploy.py", str(trained), str(file))
    assert run("predict.py", "--model", str(file), *EXAMPLE)
