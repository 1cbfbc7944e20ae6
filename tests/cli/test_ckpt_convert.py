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
