"""`lightkit ckpt merge`: the plain model of a run or an adapter file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightkit.checkpoint.weights import read_weights
from lightkit.models import MLP
from tests.cli.tuned_runs import Made, a_run, an_adapter, outputs
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
LORA = ["finetune=lora", "finetune.lora.rank=2"]


@pytest.fixture
def base(project: Path) -> Made:
    return a_run(project, "base", seed=1)


@pytest.fixture
def tuned(base: Made, project: Path) -> Made:
    return a_run(project, "tuned", *LORA, f"finetune.weights.path={base.folder}", seed=2)


def plain(state: dict[str, torch.Tensor]) -> MLP:
    model = MLP(in_features=13, num_classes=3, hidden=[6], norm="batch")
    model.load_state_dict(state)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("impl", ["parametrize", "wrap"])
@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_a_run_is_written_as_the_plain_model(cli: Cli, project: Path, impl: str, name: str) -> None:
    run = a_run(project, "lora", *LORA, f"finetune.lora.impl={impl}")
    done = cli("ckpt", "merge", "lora", name)
    assert done.code == 0, done.err
    assert "step-00000010.pt (model), merged, written to" in done.out
    state = load_file(name) if name.endswith("safetensors") else torch.load(name, weights_only=True)
    assert torch.allclose(outputs(plain(state), run.data), run.outputs(), atol=1e-5)


def test_the_base_need_not_be_there_for_a_run(cli: Cli, base: Made, tuned: Made, project: Path) -> None:
    base.folder.rename(project / "elsewhere")
    done = cli("ckpt", "merge", str(tuned.folder), "x.pt")
    assert done.code == 0, done.err
    assert torch.allclose(outputs(plain(torch.load("x.pt")), tuned.data), tuned.outputs(), atol=1e-5)


def test_the_whole_model_is_of_the_plain_class(cli: Cli, tuned: Made) -> None:
    done = cli("ckpt", "merge", "tuned", "x.pt", "--to", "model")
    assert done.code == 0, done.err
    model = torch.load("x.pt", weights_only=False)
    assert type(model) is MLP
    assert sorted(model.state_dict()) == sorted(plain(model.state_dict()).state_dict())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.allclose(outputs(model, tuned.data), tuned.outputs(), atol=1e-5)


def test_a_run_of_plain_training_is_written_as_it_is(cli: Cli, base: Made) -> None:
    assert cli("ckpt", "merge", "base", "x.pt").code == 0
    assert cli("ckpt", "diff", "x.pt", "base").code == 0


def test_a_replaced_head_goes_with_it(cli: Cli, project: Path) -> None:
    run = a_run(project, "wide", *LORA, "model.num_classes=7", "finetune.head.replace=always")
    assert run.model.state_dict()["head.weight"].shape == (3, 6)
    done = cli("ckpt", "merge", "wide", "x.pt")
    assert done.code == 0, done.err
    assert torch.load("x.pt")["head.weight"].shape == (3, 6)


def test_an_adapter_file_is_merged_with_its_base(cli: Cli, base: Made, tuned: Made) -> None:
    path = an_adapter(tuned)
    assert path.stat().st_size < (base.folder / "checkpoints" / "step-00000010.pt").stat().st_size
    done = cli("ckpt", "merge", str(path), "x.pt")
    assert done.code == 0, done.err
    assert "adapter.pt on top of" in done.out
    assert cli("ckpt", "merge", "tuned", "y.pt").code == 0
    assert cli("ckpt", "diff", "x.pt", "y.pt").code == 0
    inspected = cli("ckpt", "inspect", str(path))
    assert inspected.code == 0, inspected.err
    assert "adapter: what differs from its base weights" in inspected.out
    assert "model._target_" in inspected.out


def test_an_adapter_away_from_everything_needs_its_base_named(cli: Cli, base: Made, tuned: Made, project: Path) -> None:
    path = an_adapter(tuned).rename(project / "mine.pt")
    assert cli("ckpt", "convert", "base", "base weights=1,2.pt").code == 0
    assert cli("ckpt", "merge", "tuned", "y.pt").code == 0
    base.folder.rename(project / "elsewhere")
    tuned.folder.rename(project / "away")
    lost = cli("ckpt", "merge", str(path), "x.pt")
    assert lost.code == 2
    assert "the base of the adapter is not where it was" in lost.err
    assert "--base FILE" in lost.err
    wrong = cli("ckpt", "merge", str(path), "x.pt", "--base", "none.pt")
    assert (wrong.code, "--base: there is no such file" in wrong.err) == (2, True)
    done = cli("ckpt", "merge", str(path), "x.pt", "--base", "base weights=1,2.pt")
    assert done.code == 0, done.err
    assert cli("ckpt", "diff", "x.pt", "y.pt").code == 0


def test_the_wrong_base_is_refused(cli: Cli, base: Made, tuned: Made, project: Path) -> None:
    path, other = an_adapter(tuned), a_run(project, "other", seed=9)
    done = cli("ckpt", "merge", str(path), "x.pt", "--base", str(other.folder))
    assert done.code == 2
    assert "the adapter belongs to other base weights" in done.err
    assert str(base.folder) in done.err
    assert str(other.folder) in done.err
    assert not Path("x.pt").exists()


def test_an_adapter_file_cannot_have_its_base_trusted(cli: Cli, project: Path) -> None:
    base = a_run(project, "base")
    torch.save(base.model, "whole.pt")
    options = ["finetune.weights.path=whole.pt", "finetune.weights.trust=true"]
    path = str(an_adapter(a_run(project, "tuned", *LORA, *options, seed=2)))
    done = cli("ckpt", "merge", path, "x.pt")
    assert done.code == 5
    assert "run code when they are opened" in done.err
    trusted = cli("ckpt", "merge", path, "x.pt", "--trust")
    assert trusted.code == 0, trusted.err


def test_what_cannot_be_merged_is_refused(cli: Cli, project: Path) -> None:
    a_run(
        project, "bottleneck", "finetune=adapter", "finetune.adapter.match=[layers.linear0]", "finetune.adapter.width=2"
    )
    done = cli("ckpt", "merge", "bottleneck", "x.pt")
    assert done.code == 2
    assert "cannot be merged" in done.err
    assert not Path("x.pt").exists()


def test_conversion_keeps_the_names_and_points_to_merging(cli: Cli, base: Made, tuned: Made) -> None:
    done = cli("ckpt", "convert", "tuned", "x.pt")
    assert done.code == 0, done.err
    assert "`lightkit ckpt merge` writes the plain model" in done.out
    assert any(".lora_A" in name for name in read_weights("x.pt").state)
    assert cli("ckpt", "diff", "x.pt", "tuned").code == 0
    assert "note" not in cli("ckpt", "convert", "base", "y.pt").out
    assert "note" not in cli("ckpt", "convert", "tuned", "z.pt", "--to", "state").out
    whole = cli("ckpt", "convert", "tuned", "m.pt", "--to", "model")
    assert whole.code == 0, whole.err
    model = torch.load("m.pt", weights_only=False)
    assert torch.equal(outputs(model, tuned.data), tuned.outputs())
    assert "note: its LoRA matrices" in whole.out


def test_damaged_files_end_with_5(cli: Cli, tuned: Made) -> None:
    path = an_adapter(tuned)
    os.truncate(path, 500)
    assert cli("ckpt", "merge", str(path), "x.pt").code == 5
    os.truncate(tuned.folder / "checkpoints" / "step-00000010.pt", 500)
    assert cli("ckpt", "merge", "tuned", "x.pt").code == 5
    assert not Path("x.pt").exists()


def protocol_of(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        return archive.read(name)[1]


def test_the_protocol_of_pickle_can_be_chosen(cli: Cli, base: Made, project: Path) -> None:
    for kind, wanted in (("weights", 2), ("weights", 4), ("model", 5)):
        given = () if wanted == 2 else ("--pickle-protocol", str(wanted))
        done = cli("ckpt", "convert", str(base.folder), f"{kind}{wanted}.pt", "--to", kind, *given)
        assert done.code == 0, done.err
        assert protocol_of(project / f"{kind}{wanted}.pt") == wanted
        assert ("weights_only=False only" in done.out) == ((kind, wanted) == ("weights", 4))
    expected = torch.load(project / "weights2.pt", weights_only=True)
    found = torch.load(project / "weights4.pt", weights_only=False)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


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
