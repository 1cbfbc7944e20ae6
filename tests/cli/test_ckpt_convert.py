"""`lightkit ckpt merge`: the plain model of a run or an adapter file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightkit.checkpoint.weights import read_weights
from lightkit.models import MLP
from tests.cli.tuned_runs import Made, a_run, an_adapter, outputs
from tests.conftest import Cli

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


def is_like(state: dict[str, torch.Tensor], run: Made) -> bool:
    """Whether the plain model with these weights says what the run's own model says."""
    return torch.allclose(outputs(plain(state), run.data), run.outputs(), atol=1e-5)


@pytest.mark.parametrize(
    ("impl", "name"), [("parametrize", "x.pt"), pytest.param("wrap", "x.safetensors", marks=pytest.mark.thorough)]
)
def test_a_run_is_written_as_the_plain_model(cli: Cli, project: Path, impl: str, name: str) -> None:
    run = a_run(project, "lora", *LORA, f"finetune.lora.impl={impl}")
    done = cli("ckpt", "merge", "lora", name)
    assert done.code == 0, done.err
    assert "step-00000010.pt (model), merged, written to" in done.out
    assert is_like(load_file(name) if name.endswith("safetensors") else torch.load(name, weights_only=True), run)


def test_the_base_need_not_be_there_for_a_run(cli: Cli, base: Made, tuned: Made, project: Path) -> None:
    base.folder.rename(project / "elsewhere")
    assert cli("ckpt", "merge", str(tuned.folder), "x.pt").code == 0
    assert is_like(torch.load("x.pt"), tuned)
    assert cli("ckpt", "merge", str(tuned.folder), "y.pt", "--to", "model").code == 0
    model = torch.load("y.pt", weights_only=False)
    assert type(model) is MLP
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert is_like(model.state_dict(), tuned)


def test_a_replaced_head_goes_with_it(cli: Cli, project: Path) -> None:
    run = a_run(project, "wide", *LORA, "model.num_classes=7", "finetune.head.replace=always")
    assert run.model.state_dict()["head.weight"].shape == (3, 6)
    assert cli("ckpt", "merge", "wide", "x.pt").code == 0
    assert torch.load("x.pt")["head.weight"].shape == (3, 6)


def test_an_adapter_file_is_merged_with_its_base_and_with_no_other(
    cli: Cli, base: Made, tuned: Made, project: Path
) -> None:
    path, other = an_adapter(tuned), a_run(project, "other", seed=9)
    assert path.stat().st_size < (base.folder / "checkpoints" / "step-00000010.pt").stat().st_size
    done = cli("ckpt", "merge", str(path), "x.pt")
    assert (done.code, "adapter.pt on top of" in done.out) == (0, True), done.err
    for source, written in (("tuned", "y.pt"), ("base", "base.pt")):  # what was trained plainly, as it is
        assert cli("ckpt", "merge", source, written).code == 0
        assert cli("ckpt", "diff", written, "x.pt" if source == "tuned" else source).code == 0
    inspected = cli("ckpt", "inspect", str(path))
    assert "adapter: what differs from its base weights" in inspected.out
    assert "model._target_" in inspected.out
    wrong = cli("ckpt", "merge", str(path), "z.pt", "--base", str(other.folder))
    assert (wrong.code, "the adapter belongs to other base weights" in wrong.err) == (2, True)
    assert (str(base.folder) in wrong.err, str(other.folder) in wrong.err) == (True, True)
    assert not Path("z.pt").exists()


def test_an_adapter_away_from_everything_needs_its_base_named(cli: Cli, base: Made, tuned: Made, project: Path) -> None:
    path = an_adapter(tuned).rename(project / "mine.pt")
    assert cli("ckpt", "convert", "base", "base weights=1,2.pt").code == 0
    assert cli("ckpt", "merge", "tuned", "y.pt").code == 0
    base.folder.rename(project / "elsewhere")
    tuned.folder.rename(project / "away")
    lost = cli("ckpt", "merge", str(path), "x.pt")
    assert (lost.code, "the base of the adapter is not where it was" in lost.err, "--base FILE" in lost.err) == (
        2,
        True,
        True,
    )
    wrong = cli("ckpt", "merge", str(path), "x.pt", "--base", "none.pt")
    assert (wrong.code, "--base: there is no such file" in wrong.err) == (2, True)
    assert cli("ckpt", "merge", str(path), "x.pt", "--base", "base weights=1,2.pt").code == 0
    assert cli("ckpt", "diff", "x.pt", "y.pt").code == 0


def test_an_adapter_file_cannot_have_its_base_trusted(cli: Cli, project: Path) -> None:
    torch.save(a_run(project, "base").model, "whole.pt")
    options = ["finetune.weights.path=whole.pt", "finetune.weights.trust=true"]
    path = str(an_adapter(a_run(project, "tuned", *LORA, *options, seed=2)))
    done = cli("ckpt", "merge", path, "x.pt")
    assert (done.code, "run code when they are opened" in done.err) == (5, True)
    trusted = cli("ckpt", "merge", path, "x.pt", "--trust")
    assert trusted.code == 0, trusted.err


def test_what_cannot_be_merged_is_refused(cli: Cli, project: Path) -> None:
    narrow = ("finetune.adapter.match=[layers.linear0]", "finetune.adapter.width=2")
    a_run(project, "bottleneck", "finetune=adapter", *narrow)
    done = cli("ckpt", "merge", "bottleneck", "x.pt")
    assert (done.code, "cannot be merged" in done.err, Path("x.pt").exists()) == (2, True, False)


def test_conversion_keeps_the_names_and_points_to_merging(cli: Cli, base: Made, tuned: Made) -> None:
    done = cli("ckpt", "convert", "tuned", "x.pt")
    assert "`lightkit ckpt merge` writes the plain model" in done.out
    assert any(".lora_A" in name for name in read_weights("x.pt").state)
    assert cli("ckpt", "diff", "x.pt", "tuned").code == 0
    assert "note" not in cli("ckpt", "convert", "base", "y.pt").out
    assert "note" not in cli("ckpt", "convert", "tuned", "z.pt", "--to", "state").out
    assert "note: its LoRA matrices" in cli("ckpt", "convert", "tuned", "m.pt", "--to", "model").out
    assert torch.equal(outputs(torch.load("m.pt", weights_only=False), tuned.data), tuned.outputs())


def test_damaged_files_end_with_5(cli: Cli, tuned: Made) -> None:
    for path, name in ((an_adapter(tuned), "adapter.pt"), (tuned.folder / "checkpoints" / "step-00000010.pt", "")):
        os.truncate(path, 500)
        assert cli("ckpt", "merge", str(tuned.folder / name), "x.pt").code == 5
    assert not Path("x.pt").exists()


def test_the_protocol_of_pickle_can_be_chosen(cli: Cli, base: Made, project: Path) -> None:
    for kind, given in (("weights", ""), ("weights", "4"), ("model", "5")):
        option = ("--pickle-protocol", given) if given else ()
        done = cli("ckpt", "convert", "base", f"{kind}{given}.pt", "--to", kind, *option)
        assert ("weights_only=False only" in done.out) == ((kind, given) == ("weights", "4"))
        with zipfile.ZipFile(f"{kind}{given}.pt") as file:
            (name,) = [name for name in file.namelist() if name.endswith("/data.pkl")]
            assert file.read(name)[1] == int(given or "2")


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
    assert f"lightkit eval {runs[0].folder} --checkpoint x.pt" in done.out
    assert "running means" not in done.out
    made, wanted = torch.load("x.pt", weights_only=True), mean(runs, [1 / 3] * 3)
    assert all(torch.allclose(made[name], wanted[name]) for name in wanted)


def test_weights_and_kinds(cli: Cli, runs: list[Made]) -> None:
    done = cli("ckpt", "average", "run1", "run2", "x.safetensors", "--weights", "3,1")
    assert (done.code, "0.7500" in done.out) == (0, True), done.err
    wanted = mean(runs[:2], [0.75, 0.25])
    assert all(torch.allclose(tensor, wanted[name]) for name, tensor in load_file("x.safetensors").items())
    whole = cli("ckpt", "average", "run1", "x.safetensors", "y.pt", "--to", "model")
    assert (whole.code, "lightkit eval" in whole.out) == (0, False), whole.err
    model, wanted = torch.load("y.pt", weights_only=False), mean(runs[:2], [0.875, 0.125])
    assert type(model) is MLP
    assert all(torch.allclose(tensor, wanted[name]) for name, tensor in model.state_dict().items())
    state = dict(runs[0].model.state_dict())
    name = next(name for name in state if name.endswith("running_mean"))
    torch.save(state | {name: state[name] + 1}, "moved.pt")
    moved = cli("ckpt", "average", "run1", "moved.pt", "z.pt")
    assert "note: 1 running means and variances of norm layers were averaged too, and may not" in moved.out


def test_lora_is_merged_before(cli: Cli, project: Path) -> None:
    one, _ = (a_run(project, f"lora{seed}", *LORA, seed=seed) for seed in (1, 2))
    assert cli("ckpt", "average", "lora1", "lora2", "x.pt").code == 0
    for seed in (1, 2):
        assert cli("ckpt", "merge", f"lora{seed}", f"{seed}.pt").code == 0
    made, first, second = (torch.load(f"{name}.pt") for name in ("x", "1", "2"))
    assert made.keys() == first.keys()
    name = "layers.linear0.weight"
    assert torch.allclose(made[name], (first[name] + second[name]) / 2)
    assert cli("ckpt", "average", str(an_adapter(one)), "2.pt", "y.pt").code == 0
    assert cli("ckpt", "diff", "x.pt", "y.pt").code == 0
    assert cli("ckpt", "convert", "lora2", "raw.pt").code == 0
    raw = cli("ckpt", "average", "lora1", "raw.pt", "z.pt")
    assert (raw.code, "the mean of matrices is not the mean of what they do" in raw.err) == (2, True)
