from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Outcome
from tests.runner.finished_runs import trained

Cli = Callable[..., Outcome]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return trained(tmp_path_factory.mktemp("finished") / "run", "data.batch_size=32")


@pytest.fixture
def run(finished: Path, project: Path) -> Path:
    """The same by the name `mine`."""
    folder = project / "outputs" / "runs" / "2026-01-31" / "10-00-00-mine"
    return Path(shutil.copytree(finished, folder))


def test_weights_of_a_checkpoint(cli: Cli, run: Path) -> None:
    done = cli("params", "mine")
    assert done.code == 0, done.err
    names = [line.split()[0] for line in done.out.partition("\n\n")[0].splitlines()]
    assert names[0] == "name"
    assert {name.partition(".")[0] for name in names[1:]} == {"layers", "head"}
    assert "79 numbers in 6 tensors, norm " in done.out
    (path,) = list((run / "checkpoints").glob("step-*.pt"))[-1:]
    found = json.loads(cli("params", "last", "--json", "--checkpoint", str(path)).out)
    weights = torch.load(path, weights_only=True)["model"]
    for one in found:
        assert one["values"]["norm"] == pytest.approx(weights[one["name"]].norm().item())
        assert one["gradient"] is None


def test_gradients(cli: Cli, run: Path) -> None:
    before = sorted(path for path in run.rglob("*"))
    found = json.loads(cli("params", "mine", "--grads", "--json").out)
    assert all(one["gradient"]["norm"] > 0 for one in found)
    again = json.loads(cli("params", "mine", "--grads", "--json").out)
    assert again == found
    other = json.loads(cli("params", "mine", "--grads", "--json", "data.batch_size=8").out)
    assert other[0]["gradient"] != found[0]["gradient"]
    assert other[0]["values"] == found[0]["values"]
    done = cli("params", "mine", "--grads", "--match", "head")
    assert "grad norm" in done.out
    assert "layers" not in done.out
    assert "norm of their gradients" in done.out
    assert sorted(path for path in run.rglob("*")) == before


def test_a_picture(cli: Cli, run: Path, project: Path) -> None:
    done = cli("params", "mine", "--output", "params.svg")
    assert done.code == 0, done.err
    assert done.out.endswith("6 of 6 drawn: params.svg\n")
    assert (project / "params.svg").exists()


def test_frozen_ones(cli: Cli, run: Path, project: Path) -> None:
    folder = project / "outputs" / "runs" / "2026-01-31" / "11-00-00-tuned"
    trained(folder, "finetune=head", f"finetune.weights.path={run}")
    done = cli("params", "tuned", "--grads")
    assert done.code == 0, done.err
    frozen = [line.split()[0] for line in done.out.splitlines() if " frozen" in line]
    assert len(frozen) == 4
    assert all(name.startswith("layers.") for name in frozen)
    assert "no gradient" not in done.out


@pytest.mark.thorough
def test_an_ensemble_has_several_models(cli: Cli, project: Path) -> None:
    folder = trained(
        project / "outputs" / "runs" / "2026-01-31" / "12-00-00-vote", "ensemble=voting", "ensemble.size=2"
    )
    done = cli("params", "vote")
    assert done.code == 2
    assert f"fix:      lightkit params {folder}/members/NAME" in done.err
    member = cli("params", str(folder / "members" / "00"))
    assert member.code == 0, member.err
