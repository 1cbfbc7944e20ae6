"""The pages of experiments and benchmarks: what they tell to type is composed and checked, and nothing is trained.

The experiments themselves run in tests/experiments, and the benchmarks in tests/benchmarks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.docs.pages import ROOT, blocks

Cli = Callable[..., Outcome]
EXPERIMENTS = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/README.md"))
BASES = ("char_lm", "char_lm_transformer", "transfer_digits_base", "transfer_shapes_base")
"""Runs that the pages make, and go on from."""


def lines(path: Path) -> Iterator[list[str]]:
    """The words of each command on a page."""
    for block in blocks(path):
        yield from (shlex.split(line, comments=True) for line in block.code.splitlines() if block.language == "bash")


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


@pytest.mark.parametrize("name", [*EXPERIMENTS, "benchmarks"])
def test_every_module_that_is_run_is_there(name: str) -> None:
    page = ROOT / ("benchmarks" if name == "benchmarks" else f"experiments/{name}") / "README.md"
    modules = [words[2] for words in lines(page) if words[:2] == ["python", "-m"]]

    assert [module for module in modules if find_spec(module) is None] == []
    assert modules or name != "benchmarks"
