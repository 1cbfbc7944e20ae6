from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.runner.finished_runs import trained

Cli = Callable[..., Outcome]


def test_a_table_and_what_it_comes_to(cli: Cli, project: Path) -> None:
    done = cli("summary", "data=wine", "model.hidden=[8]")
    assert done.code == 0, done.err
    table, _, below = done.out.partition("\n\n")
    head, model, *rows = table.splitlines()
    assert head.split() == ["layer", "class", "×", "output", "parameters", "trains", "MACs", "share", "%"]
    assert model.split() == ["model", "MLP", "(1,", "3)", "155", "yes", "128", "100.0"]
    assert [row.split()[0] for row in rows] == ["layers", "linear0", "norm0", "activation0", "head"]
    labels = [line.partition("  ")[0] for line in below.splitlines()]
    assert labels == ["input", "parameters", "forward", "counted", "not counted", "", "training", "memory", ""]
    assert not (project / "outputs").exists()


def test_as_json(cli: Cli) -> None:
    done = cli("summary", "data=digits", "model=cnn", "--input", "1x16x16", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["inputs"] == [[1, 1, 16, 16]]
    assert found["layers"][0]["flops"] == found["forward"]["flops"]


def test_levels(cli: Cli) -> None:
    args = ("summary", "data=digits", "model=transformer", "model.dim=8", "model.heads=2", "model.depth=3")
    few = cli(*args, "--depth", "1").out.partition("\n\n")[0].splitlines()
    assert [row.split()[0] for row in few[1:]] == ["model", "embed", "blocks", "norm", "head"]
    long = cli(*args, "--depth", "2", "--long").out
    assert [f"\n    {at} " in long for at in range(3)] == [True] * 3


def test_of_an_earlier_run(cli: Cli, project: Path) -> None:
    trained(project / "outputs" / "runs" / "2026-01-31" / "10-00-00-mine")
    done = cli("summary", "--from", "mine", "--json")
    assert done.code == 0, done.err
    assert [layer["output"] for layer in json.loads(done.out)["layers"] if layer["name"] == "layers"] == [[1, 4]]
    without = cli("summary", "mine")
    assert without.code == 2
    assert "fix:      --from mine" in without.err


@pytest.fixture
def rules(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a function that counts, and one that fails."""
    (project / "own_rules.py").write_text(
        "def linear(module, inputs, output):\n"
        "    return 1000 * inputs[0].shape[0] * module.in_features\n\n\n"
        "def fails(module, inputs, output):\n"
        "    return module.nothing\n"
    )
    yield project
    sys.modules.pop("own_rules", None)


def test_a_project_counts_the_classes_of_others(cli: Cli, rules: Path) -> None:
    plain = json.loads(cli("summary", "data=wine", "model.hidden=[8]", "--json").out)
    own = "logger.flops={Linear: {_target_: own_rules.linear, _partial_: true}}"
    done = cli("summary", "data=wine", "model.hidden=[8]", own, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["forward"]["flops"] == 1000 * (13 + 8)
    assert found["training"]["flops"] == 3 * found["forward"]["flops"] * found["training"]["samples"]
    by_name = {layer["name"]: layer["flops"] for layer in found["layers"]}
    assert by_name["head"] == 8000
    assert plain["forward"]["flops"] == 256


def test_a_rule_that_is_for_nothing_or_fails_is_told(cli: Cli, rules: Path) -> None:
    unused = "logger.flops={Conv9d: {_target_: own_rules.linear, _partial_: true}}"
    assert "logger.flops.Conv9d: the model has no module of this class" in cli("summary", "data=wine", unused).out
    fails = cli("summary", "data=wine", "logger.flops={Linear: {_target_: own_rules.fails, _partial_: true}}")
    assert fails.code == 2
    assert "logger.flops.Linear: this rule fails: AttributeError" in fails.err
    missing = cli("summary", "data=wine", "logger.flops={Linear: {_target_: own_rules.nothing, _partial_: true}}")
    assert missing.code == 2
    assert "logger.flops.Linear._target_" in missing.err
