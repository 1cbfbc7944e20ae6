"""Every preset in whole runs: it trains, the audit has nothing to say, and what the run leaves is what it promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.checkpoint.weights import read_weights
from tests.finetune.spies import Watch, watching
from tests.finetune.whole import (
    HEADS,
    INJECTING,
    PRESETS,
    complaints,
    content,
    moved,
    notes,
    options,
    plain,
    plain_weights,
    promised,
    run,
    same_bits,
    tuned,
)

pytestmark = pytest.mark.usefixtures("hasty")

RUNS = [
    ("cnn", "lora"),
    *(("cnn", preset) for preset in PRESETS if preset not in ("lora", "prefix")),
    *(("transformer", preset) for preset in ("prefix", "adapter", "bitfit")),
    ("mlp", "adapter"),
    ("resnet18", "gradual"),
    ("vit", "prefix"),
    ("torchvision", "norm"),
]
"""Every preset once, and more where networks differ."""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:::peft")
@pytest.mark.parametrize(("model", "preset"), RUNS)
def test_a_preset_moves_what_it_promises_and_nothing_else(
    tmp_path: Path, bases: dict[str, Path], model: str, preset: str
) -> None:
    if preset == "peft":
        pytest.importorskip("peft", exc_type=ImportError)
    base, pretrained = bases[model], [f"finetune.weights.path={bases[model]}"] if preset != "none" else []
    folder = tuned(tmp_path / "run", model, preset, watching(), *pretrained)
    before, after = started(), plain_weights(folder)
    known = read_weights(base).state
    kind = {plain(name): what for name, what in Watch.seen[-1].kinds.items() if plain(name) in known}
    new = set(before) - set(known)
    assert set(before) >= set(known)
    assert bool(new) == (preset in INJECTING)
    if preset != "none":
        assert [name for name in known if not same_bits(known[name], before[name])] == head_of(model)
        check_audit(folder, moved(before, after))
    assert moved(before, after) == promised(preset, kind, HEADS[model]) | new
    assert complaints(folder) == []


def started() -> dict[str, Tensor]:
    """The tensors that the newest run began with, by their names of before anything was put in."""
    return {plain(name): tensor for name, tensor in Watch.seen[-1].start.items()}


def head_of(model: str) -> list[str]:
    """What is new where the base knew other classes."""
    return [] if model == "mlp" else [f"{HEADS[model]}.weight", f"{HEADS[model]}.bias"]


def check_audit(folder: Path, really: set[str]) -> None:
    """Compare what a run's audit says with the tensors that really moved."""
    found = notes(folder)
    names = {
        (table["phase"], row["group"]): row["names"] for table in found["plan"]["phases"] for row in table["groups"]
    }
    count = len(Watch.seen[-1].kinds) - sum(kind == "buffer" for kind in Watch.seen[-1].kinds.values())
    noted: set[str] = set()
    for table in found["plan"]["phases"]:
        rows = [row for row in found["audit"] if row["phase"] == table["phase"]]
        assert sum(row["tensors"] for row in rows) == count
        assert all(row["should_move"] is not None for row in rows)
        for row in rows:
            assert row["moved"] == row["gradients"] == (row["tensors"] if row["should_move"] else 0), row
            assert row["norms_moved"] == row["norms_should_move"]
            noted |= {plain(name) for name in names[row["phase"], row["group"]] if row["moved"]}
    assert noted == {name for name in really if "running_" not in name and "num_batches" not in name}
    last = [row for row in found["audit"] if row["phase"] == found["plan"]["phases"][-1]["phase"]]
    assert sum(row["norms_moved"] for row in last) == sum(name.endswith("running_mean") for name in really)


# Combinations

COMBINED = {
    "lora, adapter and prefix": (
        "transformer",
        "[lora,adapter,prefix]",
        ["finetune.lora.rank=2", "finetune.prefix.length=2", "finetune.lora.impl=wrap"],
    ),
    "lora and norms": ("resnet18", "[lora,norm]", ["finetune.lora.rank=2", "finetune.lora.match=[@conv]"]),
    "lora with a schedule": (
        "transformer",
        "lora",
        ["finetune.lora.rank=2", "finetune.schedule=[{epoch: 1, freeze: [@tuned], unfreeze: [blocks.1]}]"],
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMBINED)
def test_parts_combine_in_one_run(tmp_path: Path, bases: dict[str, Path], name: str) -> None:
    model, preset, more = COMBINED[name]
    folder = tuned(tmp_path / "run", model, preset, watching(), f"finetune.weights.path={bases[model]}", *more)
    assert complaints(folder) == []
    before, after, known = started(), plain_weights(folder), read_weights(bases[model]).state
    kind = {plain(name): what for name, what in Watch.seen[-1].kinds.items() if plain(name) in known}
    wanted = promised("norm" if "norms" in name else "head", kind, HEADS[model]) | (set(before) - set(known))
    if "schedule" in name:
        wanted |= {name for name in known if name.startswith("blocks.1.")}
    assert moved(before, after) == wanted
    check_audit(folder, moved(before, after))


@pytest.mark.thorough
def test_lora_with_an_average_in_bf16_and_accumulation(tmp_path: Path, bases: dict[str, Path]) -> None:
    more = ["trainer.ema.decay=0.9", "device.precision=bf16", "trainer.accumulate=2", "data.batch_size=8"]
    folder = tuned(tmp_path / "run", "cnn", "lora", watching(), f"finetune.weights.path={bases['cnn']}", *more)
    assert complaints(folder) == []
    before, found = Watch.seen[-1].start, content(folder)
    average = found["ema"]["model"] if "model" in found["ema"] else found["ema"]
    changed = {name for name in before if ".lora_" in name or "0.lora" in name or name.startswith("head.")}
    assert moved(before, found["model"]) == changed
    tensors = {name: tensor for name, tensor in flat(average).items() if name in before}
    assert set(tensors) >= changed
    # A mean of equal numbers may be another number: it must not be for what never moves.
    assert {name for name in tensors if not same_bits(before[name].to(tensors[name].dtype), tensors[name])} == changed


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Nested dictionaries of tensors by their innermost names."""
    found: dict[str, Tensor] = {}
    for name, value in tree.items():
        found |= flat(value) if isinstance(value, dict) else {name: value} if isinstance(value, Tensor) else {}
    return found


# Norm layers and dropout of frozen parts


@pytest.mark.thorough
@pytest.mark.parametrize(("preset", "bn"), [("freeze", "train"), ("lora", "stats"), ("lora", "frozen")])
def test_norm_layers_of_frozen_parts_do_as_bn_says(
    tmp_path: Path, bases: dict[str, Path], preset: str, bn: str
) -> None:
    path = f"finetune.weights.path={bases['cnn']}"
    folder = tuned(tmp_path / "run", "cnn", preset, watching(), path, f"finetune.bn={bn}")
    assert complaints(folder) == []
    before, after = started(), plain_weights(folder)
    kind = {plain(name): what for name, what in Watch.seen[-1].kinds.items()}
    wanted = {name for name in before if name.startswith("head.") or "lora_" in name}
    wanted |= {name for name in before if bn != "frozen" and kind[name] == "buffer"}
    wanted |= {name for name in before if bn == "train" and kind[name] == "norm"}
    assert moved(before, after) == wanted
    modes = [taken.norms for taken in Watch.seen[-1].taken]
    assert modes == [dict.fromkeys(modes[0], bn != "frozen")] * len(modes)
    check_audit(folder, moved(before, after))


@pytest.mark.thorough
@pytest.mark.parametrize("dropout", ["off", "keep"])
def test_dropout_of_frozen_parts(tmp_path: Path, bases: dict[str, Path], dropout: str) -> None:
    path, more = f"finetune.weights.path={bases['transformer']}", ["model.dropout=0.2", f"finetune.dropout={dropout}"]
    schedule = "finetune.schedule=[{epoch: 1, unfreeze: [blocks.1]}]"
    folder = tuned(tmp_path / "run", "transformer", "freeze", watching(), path, *more, schedule)
    assert complaints(folder) == []
    for taken in Watch.seen[-1].taken:
        assert taken.dropouts
        for place, trains in taken.dropouts.items():
            assert trains == (dropout == "keep" or (taken.epoch >= 1 and place.startswith("blocks.1"))), place


# Schedules


def test_gradual_unfreezing_moves_each_layer_from_its_step_on(tmp_path: Path, bases: dict[str, Path]) -> None:
    more = ["trainer.epochs=4", "optim=sgd", "optim.lr=0.01", "finetune.gradual.share=null"]
    gradual = ["finetune.gradual.every_steps=3", "finetune.gradual.first=4"]
    path = f"finetune.weights.path={bases['cnn']}"
    folder = tuned(tmp_path / "run", "cnn", "gradual", watching(prints=True), path, *more, *gradual)
    watch = Watch.seen[-1]
    for name, kind in watch.kinds.items():
        first = 0 if name.startswith("head.") else 4 if name.startswith("stages.1") else 7
        steps = watch.moved(name)
        assert steps == list(range(first, 12)), name
        assert kind != "buffer" or all(
            taken.norms[name.rpartition(".")[0]] == (taken.step >= first) for taken in watch.taken
        )
    assert [table["phase"] for table in notes(folder)["plan"]["phases"]] == ["epoch 0", "step 4", "step 7"]
    assert complaints(folder) == []


@pytest.mark.thorough
@pytest.mark.parametrize("optim", ["adamw", "sgd"])
def test_what_is_frozen_in_mid_run_stands_still_at_once(tmp_path: Path, bases: dict[str, Path], optim: str) -> None:
    chosen = [f"optim={optim}", "optim.lr=0.01", "optim.weight_decay=0.1", "trainer.epochs=3"]
    schedule = "finetune.schedule=[{step: 4, freeze: [@body]}, {epoch: 2, unfreeze: [stages.1]}]"
    path = f"finetune.weights.path={bases['cnn']}"
    folder = tuned(tmp_path / "run", "cnn", "full", watching(prints=True), path, schedule, *chosen)
    for name in Watch.seen[-1].kinds:
        late = range(6, 9) if name.startswith("stages.1") else ()
        wanted = list(range(9)) if name.startswith("head.") else [*range(4), *late]
        assert Watch.seen[-1].moved(name) == wanted, name
    assert complaints(folder) == []


def test_probe_then_fine_tuning(tmp_path: Path, bases: dict[str, Path]) -> None:
    folder = tuned(
        tmp_path / "run", "transformer", "probe", watching(prints=True), f"finetune.weights.path={bases['transformer']}"
    )
    watch = Watch.seen[-1]
    assert {name for name in watch.kinds if 0 in watch.moved(name)} == {"head.weight", "head.bias"}
    assert {tuple(watch.moved(name)) for name in watch.kinds if not name.startswith("head.")} == {(3, 4, 5)}
    for taken in watch.taken:
        rates = {name: taken.rates[group] for group, names in taken.groups.items() for name in names}
        assert all(10 * rates[name] == pytest.approx(rates["head.weight"]) for name in rates if "head" not in name)
    assert {group["group"].split(".")[0] for group in notes(folder)["plan"]["phases"][0]["groups"]} >= {"head"}


def test_going_back_over_a_boundary(tmp_path: Path, bases: dict[str, Path]) -> None:
    """A loss that is NaN after a phase began sends the run back to the phase before, with lower rates."""
    gradual = ["finetune.gradual={every_steps: 3, first: 3, share: null}", "trainer.epochs=4"]
    back = ["trainer.nonfinite={action: rollback, every: 2, factor: 0.5}", "scheduler=constant", "optim=sgd"]
    loss = ["loss=custom", "loss._target_=tests.finetune.spies.ExplodesOnce", "+loss.at=5"]
    path = f"finetune.weights.path={bases['cnn']}"
    folder = tuned(tmp_path / "run", "cnn", "gradual", watching(), path, *gradual, *back, *loss, "optim.lr=0.01")
    assert complaints(folder) == []
    taken = Watch.seen[-1].taken
    assert [step.step for step in taken] == [*range(4), *range(2, 12)]
    assert [len(step.trainable) for step in taken] == [2 if n.step < 3 else 5 if n.step < 6 else 8 for n in taken]
    assert {tuple(step.rates.values()) for step in taken[:4]} == {(0.01,) * 3}
    assert {tuple(step.rates.values()) for step in taken[4:]} == {(0.005,) * 3}


@pytest.mark.thorough
def test_the_same_run_twice_is_the_same(tmp_path: Path, bases: dict[str, Path]) -> None:
    """The audit and the plan look, and touch nothing: neither weights nor random numbers."""
    args = options("transformer", "lora", f"finetune.weights.path={bases['transformer']}", "model.dropout=0.1")
    ends = [
        plain_weights(run(tmp_path / action, *args, f"finetune.audit={action}")) for action in ("fail", "none", "warn")
    ]
    assert not moved(ends[0], ends[1])
    assert not moved(ends[0], ends[2])
    assert all(torch.isfinite(tensor).all() for tensor in ends[0].values())
