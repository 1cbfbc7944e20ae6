"""The pages of experiments and benchmarks: what they tell to type is composed and checked, and nothing is trained.

The experiments themselves run in tests/experiments, and the benchmarks in tests/benchmarks. The example without a
configuration trains, and goes on with the same bits after it was stopped.
"""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore
from tests.conftest import Cli
from tests.docs.pages import ROOT, blocks

EXPERIMENTS = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/README.md"))
BASES = ("char_lm", "char_lm_transformer", "transfer_digits_base", "transfer_shapes_base")
"""Runs that the pages make, and go on from."""


def lines(path: Path) -> Iterator[list[str]]:
    """The words of each command on a page."""
    for block in blocks(path):
        yield from (shlex.split(line, comments=True) for line in block.code.splitlines() if block.language == "bash")


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_command_to_train_is_valid(name: str, cli: Cli, project: Path) -> None:
    for base in BASES:
        (project / "outputs" / "runs" / base).mkdir(parents=True)
    (project / "FOLDER").mkdir()
    commands = [
        words[1:] for words in lines(ROOT / "experiments" / name / "README.md") if words[:2] == ["lightkit", "train"]
    ]

    assert commands
    for words in commands:
        few = [re.sub(r"(seed=\d+)(,\d+)+", r"\1", word) for word in words]
        outcome = cli(*few, "--cfg", "job")
        assert outcome.code == 0, f"{' '.join(words)}\n{outcome.err}"


def is_there(module: str) -> bool:
    """Whether a module exists; of our own folders by its file, as other tests take these out of `sys.modules`."""
    own = module.partition(".")[0] in ("experiments", "benchmarks")
    return (ROOT / f"{module.replace('.', '/')}.py").is_file() if own else find_spec(module) is not None


@pytest.mark.parametrize("name", [*EXPERIMENTS, "benchmarks"])
def test_every_module_that_is_run_is_there(name: str) -> None:
    page = ROOT / ("benchmarks" if name == "benchmarks" else f"experiments/{name}") / "README.md"
    modules = [words[2] for words in lines(page) if words[:2] == ["python", "-m"]]

    assert [module for module in modules if not is_there(module)] == []
    assert modules or name != "benchmarks"


def test_the_example_learns_and_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len((ROOT / "examples" / "plain.py").read_text(encoding="utf-8").splitlines()) < 90
    train = runpy.run_path(str(ROOT / "examples" / "plain.py"))["main"]
    whole = train(tmp_path / "whole", epochs=3)
    assert whole.state.best_value > 0.85
    save = CheckpointStore.save

    def save_and_stop(self: CheckpointStore, *args: Any, **options: Any) -> None:
        save(self, *args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(CheckpointStore, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", epochs=3)
    monkeypatch.setattr(CheckpointStore, "save", save)
    resumed = train(tmp_path / "stopped", epochs=3)
    assert resumed.state.step == whole.state.step
    assert resumed.state.best_value == whole.state.best_value
    for one, other in zip(whole.model.parameters(), resumed.model.parameters()):
        assert torch.equal(one, other)
