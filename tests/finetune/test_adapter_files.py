"""Adapter files and merged models of real runs: small, exact, and on no other base than their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.delta import read_delta
from lightkit.checkpoint.store import CheckpointStore
from lightkit.checkpoint.weights import read_weights
from lightkit.models import CNN, TransformerClassifier
from tests.conftest import Outcome
from tests.finetune.spies import Watch, watching
from tests.finetune.whole import HEADS, MODELS, OTHER_CLASSES, SHORT, options, plain, run, same_bits, tuned

pytestmark = pytest.mark.usefixtures("hasty")

Cli = Callable[..., Outcome]
EXPORT = "checkpoint.export=adapter"


def best(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a run's best checkpoint."""
    store = CheckpointStore(folder / "checkpoints", mode="max")
    path = store.best()
    assert path is not None
    return store.load(path)["model"]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, bases: dict[str, Path]) -> Path:
    """A run with LoRA on the base `cnn`, whose folder nobody changes."""
    path = f"finetune.weights.path={bases['cnn']}"
    return tuned(tmp_path_factory.mktemp("adapted") / "run", "cnn", "lora", path, EXPORT)


def other_base(place: Path) -> Path:
    """Weights of the same network after another training."""
    return run(place, *SHORT, *MODELS["cnn"], *OTHER_CLASSES["cnn"], "trainer.epochs=1", "seed=1")


# What is in a file

KINDS = {
    "lora": ("cnn", "lora", []),
    "lora and statistics": ("cnn", "lora", ["finetune.bn=stats"]),
    "wrapped lora": ("transformer", "lora", ["finetune.lora.impl=wrap"]),
    "adapter": ("resnet18", "adapter", []),
    "prefix": ("vit", "prefix", []),
    "average": ("cnn", "lora", ["trainer.ema.decay=0.5"]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
def test_a_file_holds_exactly_what_differs_and_brings_it_back(
    tmp_path: Path, bases: dict[str, Path], adapted: Path, name: str
) -> None:
    model, preset, more = KINDS[name]
    path = f"finetune.weights.path={bases[model]}"
    folder = adapted if name == "lora" else tuned(tmp_path / "run", model, preset, path, *more, EXPORT)
    state, base = read_weights(folder).state, read_weights(bases[model]).state
    found = read_delta(folder / "adapter.pt")
    same = {own for own in state if plain(own) in base and same_bits(state[own], base[plain(own)])}
    assert set(found.tensors) == set(state) - same
    assert set(found.kept) == same
    assert {f"{HEADS[model]}.weight", f"{HEADS[model]}.bias"} <= set(found.tensors)
    assert str(bases[model]) in found.source
    more = [*more, f"finetune.weights.adapter={folder / 'adapter.pt'}", "seed=5", watching()]
    tuned(tmp_path / "again", model, preset, path, *more)
    again = Watch.seen[-1].start
    assert set(again) == set(state)
    assert all(same_bits(again[own], tensor) for own, tensor in state.items())


# On which base


@pytest.mark.thorough
def test_the_wrong_base_is_refused_and_nothing_is_written(
    cli: Cli, tmp_path: Path, project: Path, bases: dict[str, Path], adapted: Path
) -> None:
    adapter, wrong = f"finetune.weights.adapter={adapted / 'adapter.pt'}", other_base(tmp_path / "other")
    done = cli("train", *options("cnn", "lora", f"finetune.weights.path={wrong}", adapter))
    check_refused(done, project, "the adapter belongs to other base weights; nothing was loaded")
    assert str(bases["cnn"]) in done.err
    done = cli("train", *options("cnn", "lora", "seed=3", adapter))
    check_refused(done, project, "the adapter belongs to other base weights; nothing was loaded")
    done = cli("plan", *options("cnn", "lora", f"finetune.weights.path={wrong}", adapter))
    assert done.code == 2
    done = cli("ckpt", "merge", str(adapted / "adapter.pt"), "x.pt", "--base", str(wrong))
    assert done.code == 2, done.err
    assert "other base weights" in done.err
    assert not Path("x.pt").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("preset", "more"), [("lora", ["finetune.lora.rank=3"]), ("full", [])])
def test_another_model_is_refused(
    cli: Cli, project: Path, bases: dict[str, Path], adapted: Path, preset: str, more: list[str]
) -> None:
    path = f"finetune.weights.path={bases['cnn']}"
    adapter = f"finetune.weights.adapter={adapted / 'adapter.pt'}"
    done = cli("train", *options("cnn", preset, path, adapter, *more))
    check_refused(done, project, "the adapter was written for another model; nothing was loaded")
    assert "lora_A" in done.err


def check_refused(done: Outcome, project: Path, text: str) -> None:
    assert done.code == 2, done.err
    assert text in done.err
    assert "Traceback" not in done.err
    assert not any(project.rglob("config.yaml"))


def test_a_base_that_the_seed_makes(tmp_path: Path, project: Path, cli: Cli) -> None:
    folder = tuned(tmp_path / "run", "cnn", "lora", EXPORT)
    adapter = f"finetune.weights.adapter={folder / 'adapter.pt'}"
    done = cli("train", *options("cnn", "lora", adapter, "seed=9"))
    check_refused(done, project, "other base weights")
    tuned(tmp_path / "again", "cnn", "lora", adapter, watching())
    state = best(folder)
    assert all(same_bits(Watch.seen[-1].start[name], tensor) for name, tensor in state.items())


def test_a_base_that_has_moved(cli: Cli, project: Path, bases: dict[str, Path], adapted: Path) -> None:
    """What counts are the weights, not where they are or what kind of file they are in."""
    torch.save(read_weights(bases["cnn"]).state, project / "base.pt")
    adapter = f"finetune.weights.adapter={adapted / 'adapter.pt'}"
    done = cli("train", *options("cnn", "lora", "finetune.weights.path=base.pt", adapter, "hydra.run.dir=run"))
    assert done.code == 0, done.err


@pytest.mark.thorough
def test_a_base_that_is_gone_is_told_before_a_run_goes_on(cli: Cli, tmp_path: Path) -> None:
    base = run(tmp_path / "base", *SHORT, *MODELS["cnn"], *OTHER_CLASSES["cnn"], "trainer.epochs=1")
    kill = "++trainer.callbacks.kill={_target_: tests.runner.test_run.KillAt, step: 4}"
    with pytest.raises(RuntimeError, match="killed"):
        tuned(tmp_path / "run", "cnn", "lora", f"finetune.weights.path={base}", EXPORT, kill)
    base.rename(tmp_path / "gone")
    done = cli("resume", str(tmp_path / "run"), "~trainer.callbacks.kill")
    assert done.code == 2, done.err
    assert "the weights it began with are gone" in done.err
    assert str(base) in done.err
    (tmp_path / "gone").rename(base)
    assert cli("resume", str(tmp_path / "run"), "~trainer.callbacks.kill").code == 0
    assert read_delta(tmp_path / "run" / "adapter.pt").tensors


# Merged

MERGED: dict[str, tuple[str, list[str], Callable[..., Any]]] = {
    "cnn": ("cnn", [], lambda: CNN((3, 16, 16), 8, channels=[8, 16])),
    "attention": (
        "transformer",
        ["finetune.lora.match=['@linear','@attention','@conv']", "finetune.lora.rslora=true"],
        lambda: TransformerClassifier((3, 16, 16), 8, dim=16, depth=2, heads=2),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MERGED)
def test_a_merged_model_is_the_plain_class_and_does_the_same(
    cli: Cli, tmp_path: Path, bases: dict[str, Path], name: str
) -> None:
    model, more, make = MERGED[name]
    path = f"finetune.weights.path={bases[model]}"
    folder = tuned(tmp_path / "run", model, "lora", path, "optim.lr=0.05", EXPORT, *more)
    assert cli("ckpt", "merge", str(folder), "run.pt").code == 0
    assert cli("ckpt", "merge", str(folder / "adapter.pt"), "adapter.safetensors").code == 0
    assert cli("ckpt", "diff", "run.pt", "adapter.safetensors").code == 0
    state = torch.load("run.pt", weights_only=True)
    own = make()
    own.load_state_dict(state, strict=True)
    assert measured(cli, folder, "best") == pytest.approx(measured(cli, folder, "run.pt"), abs=1e-5)
    assert any(
        not torch.equal(state[name], read_weights(bases[model]).state[name]) for name in state if "head" not in name
    )


def measured(cli: Cli, folder: Path, which: str) -> dict[str, float]:
    done = cli("eval", str(folder), "--checkpoint", which)
    assert done.code == 0, done.err
    values: dict[str, float] = json.loads((folder / "eval-test.json").read_text())["metrics"]
    return values


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["weights", "safetensors", "model"])
def test_exports_of_a_run_with_lora_are_plain(tmp_path: Path, bases: dict[str, Path], cli: Cli, kind: str) -> None:
    path = f"finetune.weights.path={bases['cnn']}"
    folder = tuned(tmp_path / "run", "cnn", "lora", path, f"checkpoint.export={kind}")
    assert cli("ckpt", "merge", str(folder), "merged.pt").code == 0
    (exported,) = [file for file in folder.iterdir() if file.suffix in (".pt", ".safetensors")]
    merged = torch.load("merged.pt", weights_only=True)
    state = read_weights(exported, trust=True).state
    assert set(state) == set(merged)
    assert all(torch.allclose(state[name], merged[name], atol=1e-6) for name in state)


def test_what_is_no_part_of_the_plain_class_is_not_merged(cli: Cli, tmp_path: Path, bases: dict[str, Path]) -> None:
    path = f"finetune.weights.path={bases['cnn']}"
    folder = tuned(tmp_path / "run", "cnn", "adapter", path, "checkpoint.export=weights")
    done = cli("ckpt", "merge", str(folder), "x.pt")
    assert done.code == 2
    assert "cannot be merged" in done.err
    assert not Path("x.pt").exists()
    assert any("adapter" in name for name in torch.load(folder / "weights.pt"))


@pytest.mark.thorough
def test_a_finished_run_needs_its_base_no_more(cli: Cli, tmp_path: Path) -> None:
    base = run(tmp_path / "base", *SHORT, *MODELS["cnn"], *OTHER_CLASSES["cnn"], "trainer.epochs=1")
    folder = tuned(tmp_path / "run", "cnn", "lora", f"finetune.weights.path={base}", EXPORT)
    before = measured(cli, folder, "best")
    shutil.move(base, tmp_path / "gone")
    assert measured(cli, folder, "best") == before
    assert cli("ckpt", "merge", str(folder), "x.pt").code == 0
    done = cli("ckpt", "merge", str(folder / "adapter.pt"), "y.pt")
    assert done.code == 2, done.err
    assert cli("ckpt", "merge", str(folder / "adapter.pt"), "y.pt", "--base", str(tmp_path / "gone")).code == 0
    assert cli("ckpt", "diff", "x.pt", "y.pt").code == 0
