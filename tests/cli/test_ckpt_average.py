"""`lightkit ckpt average`: several fine-tunings as one model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightkit.models import MLP
from tests.cli.tuned_runs import Made, a_run, an_adapter
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
LORA = ["finetune=lora", "finetune.lora.rank=2"]


@pytest.fixture
def runs(project: Path) -> list[Made]:
    return [a_run(project, f"run{seed}", seed=seed, size=0.05) for seed in (1, 2, 3)]


def mean(runs: list[Made], shares: list[float]) -> dict[str, torch.Tensor]:
    states = [run.model.state_dict() for run in runs]
    return {
        name: sum(state[name].double() * share for state, share in zip(states, shares)).to(states[0][name].dtype)
        for name in states[0]
    }


def test_runs_and_files_are_averaged(cli: Cli, runs: list[Made]) -> None:
    assert cli("ckpt", "convert", "run2", "two.safetensors").code == 0
    done = cli("ckpt", "average", "run1", "two.safetensors", str(runs[2].folder), "x.pt")
    assert done.code == 0, done.err
    assert "average of 3 models written to x.pt" in done.out
    assert "two.safetensors" in done.out
    assert f"lightkit eval {runs[0].folder} --checkpoint x.pt" in done.out
    found, wanted = torch.load("x.pt", weights_only=True), mean(runs, [1 / 3] * 3)
    assert all(torch.allclose(found[name], wanted[name]) for name in wanted)


def test_weights_and_kinds(cli: Cli, runs: list[Made]) -> None:
    done = cli("ckpt", "average", "run1", "run2", "x.safetensors", "--weights", "3,1")
    assert done.code == 0, done.err
    assert "0.7500" in done.out
    wanted = mean(runs[:2], [0.75, 0.25])
    assert all(torch.allclose(tensor, wanted[name]) for name, tensor in load_file("x.safetensors").items())
    whole = cli("ckpt", "average", "run1", "x.safetensors", "y.pt", "--to", "model")
    assert whole.code == 0, whole.err
    model = torch.load("y.pt", weights_only=False)
    assert type(model) is MLP
    wanted = mean(runs[:2], [0.875, 0.125])
    assert all(torch.allclose(tensor, wanted[name]) for name, tensor in model.state_dict().items())
    assert "lightkit eval" not in whole.out


def test_statistics_of_norm_layers_get_a_note(cli: Cli, project: Path, runs: list[Made]) -> None:
    assert "running means" not in cli("ckpt", "average", "run1", "run2", "x.pt").out
    state = dict(runs[0].model.state_dict())
    name = next(name for name in state if name.endswith("running_mean"))
    torch.save(state | {name: state[name] + 1}, "moved.pt")
    done = cli("ckpt", "average", "run1", "moved.pt", "y.pt")
    assert "note: 1 running means and variances of norm layers were averaged too, and may not" in done.out


@pytest.mark.thorough
def test_lora_is_merged_before(cli: Cli, project: Path) -> None:
    one, _ = (a_run(project, f"lora{seed}", *LORA, seed=seed) for seed in (1, 2))
    done = cli("ckpt", "average", "lora1", "lora2", "x.pt")
    assert done.code == 0, done.err
    for name, out in (("lora1", "one.pt"), ("lora2", "two.pt")):
        assert cli("ckpt", "merge", name, out).code == 0
    first, second = (torch.load(f"{name}.pt") for name in ("one", "two"))
    found = torch.load("x.pt")
    assert found.keys() == first.keys()
    name = "layers.linear0.weight"
    assert torch.allclose(found[name], (first[name] + second[name]) / 2)
    again = cli("ckpt", "average", str(an_adapter(one)), "two.pt", "y.pt")
    assert again.code == 0, again.err
    assert cli("ckpt", "diff", "x.pt", "y.pt").code == 0
    whole = cli("ckpt", "average", "lora1", "lora2", "m.pt", "--to", "model")
    assert whole.code == 0, whole.err
    assert type(torch.load("m.pt", weights_only=False)) is MLP
    assert cli("ckpt", "convert", "lora2", "raw.pt").code == 0
    raw = cli("ckpt", "average", "lora1", "raw.pt", "z.pt")
    assert raw.code == 2
    assert "the mean of matrices is not the mean of what they do" in raw.err
