"""Knowledge from elsewhere in real runs: weights of all kinds, earlier fine-tunings, teachers and averages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lightkit.checkpoint.weights import read_weights
from lightkit.config import load_run
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from tests.conftest import Outcome
from tests.finetune.spies import Watch, watching
from tests.finetune.whole import (
    MODELS,
    SHORT,
    complaints,
    content,
    moved,
    options,
    plain,
    run,
    same_bits,
    tuned,
)

pytestmark = pytest.mark.usefixtures("hasty")

Cli = Callable[..., Outcome]
ONE_EPOCH = ("trainer.epochs=1", "hydra.run.dir=run")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with as many classes as those that begin with it."""
    return run(tmp_path_factory.mktemp("base") / "base", *SHORT, *MODELS["cnn"], "trainer.epochs=1")


def start() -> dict[str, Tensor]:
    """What the newest run began with."""
    return {plain(name): tensor for name, tensor in Watch.seen[-1].start.items()}


def loaded_as(state: Mapping[str, Tensor], *, but: str = "head.") -> bool:
    """Whether the newest run began with these weights, and with others of the head."""
    began = start()
    return {name for name in state if not same_bits(began[name], state[name])} == {
        name for name in state if name.startswith(but)
    }


# Weights from files


def test_weights_of_every_kind_of_file(tmp_path: Path, bases: dict[str, Path]) -> None:
    state = read_weights(bases["cnn"]).state
    torch.save(state, tmp_path / "plain.pt")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "plain.safetensors")
    torch.save({"epoch": 3, "net": {"inner": {f"module.{n}": t for n, t in state.items()}}}, tmp_path / "deep.pt")
    for name, more in (("plain.pt", []), ("plain.safetensors", []), ("deep.pt", ["finetune.weights.key=net.inner"])):
        path = f"finetune.weights.path={tmp_path / name}"
        folder = tuned(tmp_path / f"run-{name}", "cnn", "head", watching(), path, *more, "trainer.epochs=1")
        assert loaded_as(state)
        assert "12 loaded, 2 left" in (folder / "run.log").read_text()


def test_names_that_are_mapped(tmp_path: Path, bases: dict[str, Path]) -> None:
    state = read_weights(bases["cnn"]).state
    foreign = {
        f"enc.{name.replace('stages.', 'block')}": tensor for name, tensor in state.items() if "head" not in name
    }
    foreign |= {"classifier.weight": state["head.weight"], "classifier.bias": state["head.bias"]}
    foreign["optimizer.scale"] = torch.ones(3)
    torch.save(foreign, tmp_path / "foreign.pt")
    rules = "enc.block*: 'stages.*', classifier.*: 'head.*', optimizer.*: null"
    path = [f"finetune.weights.path={tmp_path / 'foreign.pt'}", f"finetune.weights.mapping={{{rules}}}"]
    tuned(tmp_path / "run", "cnn", "lora", watching(), *path, "finetune.weights.strict=exact", "trainer.epochs=1")
    assert loaded_as(state)


def test_a_run_is_found_by_its_place_in_the_outputs(cli: Cli, project: Path, base: Path) -> None:
    shutil.copytree(base, project / "outputs" / "base")
    done = cli("train", *options("cnn", "full", "finetune.weights.path=base", watching(), *ONE_EPOCH))
    assert done.code == 0, done.err
    assert loaded_as(read_weights(base).state, but="nothing")


STRICT = {
    # strict, what is changed in the file, exit status, text
    "exact": ("exact", {}, 0, ""),
    "exact, one more": ("exact", {"extra.weight": torch.ones(2)}, 2, "extra.weight"),
    "complete, one more": ("complete", {"extra.weight": torch.ones(2)}, 0, "1 unexpected"),
    "complete, one missing": ("complete", {"stages.1.norm0.bias": None}, 2, "stages.1.norm0.bias"),
    "complete, another name": (
        "complete",
        {"stages.1.norm0.bias": None, "stages.1.norm0.beta": torch.ones(16)},
        2,
        "stages.1.norm0.beta",
    ),
    "matching, one missing": ("matching", {"stages.1.norm0.bias": None}, 0, "1 missing"),
    "matching, another shape": ("matching", {"stages.1.norm0.bias": torch.ones(17)}, 0, "1 reshaped"),
    "matching, nothing": ("matching", "all", 2, "not one tensor fits"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", STRICT)
def test_how_much_of_a_file_must_fit(cli: Cli, project: Path, bases: dict[str, Path], name: str) -> None:
    strict, changes, code, text = STRICT[name]
    state: dict[str, Any] = dict(read_weights(bases["cnn"]).state)
    state = {"other": torch.ones(5)} if changes == "all" else state | changes  # type: ignore[operator]
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, project / "base.pt")
    chosen = ["finetune.weights.path=base.pt", f"finetune.weights.strict={strict}", *ONE_EPOCH]
    done = cli("train", *options("cnn", "full", *chosen, watching()))
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert text in (done.err if code else (project / "run" / "run.log").read_text())
    assert (project / "run").exists() == (code == 0)
    if code == 0:
        kept = {n for n, t in read_weights(bases["cnn"]).state.items() if same_bits(start()[n], t)}
        changed = {"missing": "stages.1.norm0.bias", "shape": "stages.1.norm0."}.get(name.rpartition(" ")[2])
        assert strict != "matching" or changed
        assert kept == {own for own in start() if not own.startswith((changed or "head.", "head."))}


def test_a_transposed_layer_gives_none_of_its_tensors(cli: Cli, project: Path, bases: dict[str, Path]) -> None:
    state = dict(read_weights(bases["cnn"]).state)
    torch.save(state | {"head.weight": torch.ones(16, 8), "head.bias": torch.ones(8)}, project / "base.pt")
    chosen = ["finetune.weights.path=base.pt", *ONE_EPOCH, "finetune.head.replace=never"]
    done = cli("train", *options("cnn", "full", *chosen, watching()))
    assert done.code == 0, done.err
    text = (project / "run" / "run.log").read_text()
    assert "left        head.bias  head.weight is 16×8 in the file, 8×16 here: transposed; keeps" in text
    assert not same_bits(start()["head.bias"], torch.ones(8))


NAN = float("nan")


def test_weights_that_diverged_are_refused(cli: Cli, project: Path, bases: dict[str, Path]) -> None:
    state = {name: tensor.clone() for name, tensor in read_weights(bases["cnn"]).state.items()}
    state["stages.1.conv0.weight"].view(-1)[3] = NAN
    torch.save(state, project / "base.pt")
    text = f"stages.1.conv0.weight: 1 of {state['stages.1.conv0.weight'].numel():,} values are NaN"
    for way in ("train", "plan"):
        done = cli(way, *options("cnn", "full", "finetune.weights.path=base.pt", "hydra.run.dir=run"))
        assert done.code == 2
        assert "base.pt" in done.err
        assert text in done.err
        assert not (project / "run").exists()
    done = cli("eval", str(bases["cnn"]), "--checkpoint", "base.pt")
    assert done.code == 2
    assert text in done.err
    left_out = ["finetune.weights.mapping={stages.1.conv0.weight: null}", "finetune.weights.strict=matching"]
    done = cli("plan", *options("cnn", "full", "finetune.weights.path=base.pt", *left_out))
    assert done.code == 0, done.err


def test_an_adapter_that_diverged_is_refused(cli: Cli, tmp_path: Path, project: Path, bases: dict[str, Path]) -> None:
    base = f"finetune.weights.path={bases['cnn']}"
    folder = tuned(tmp_path / "run", "cnn", "lora", base, "checkpoint.export=adapter", "trainer.epochs=1")
    file = torch.load(folder / "adapter.pt", weights_only=True)
    name = next(name for name in file["tensors"] if name.endswith("lora_B"))
    file["tensors"][name][0, 0] = NAN
    torch.save(file, project / "adapter.pt")
    done = cli("train", *options("cnn", "lora", base, "finetune.weights.adapter=adapter.pt", "hydra.run.dir=run"))
    assert done.code == 2
    assert f"{name}: 1 of" in done.err
    assert not (project / "run").exists()


def test_what_found_no_weights_must_train(cli: Cli, project: Path, bases: dict[str, Path]) -> None:
    state = {name: t for name, t in read_weights(bases["cnn"]).state.items() if not name.startswith("stages.1.conv0")}
    torch.save(state, project / "base.pt")
    chosen = ["finetune.weights.path=base.pt", "finetune.weights.strict=matching", *ONE_EPOCH]
    done = cli("train", *options("cnn", "head", *chosen))
    assert done.code == 2, done.err
    assert "parameters without pretrained weights never train" in done.err
    assert "stages.1.conv0.weight" in done.err
    done = cli("train", *options("cnn", "head", *chosen, "finetune.train=[@head, stages.1.conv0]"))
    assert done.code == 0, done.err


# Heads


@pytest.mark.thorough
@pytest.mark.parametrize(("kept", "same"), [("keep", True), ("reset", False)])
def test_a_head_that_fits_is_kept_or_new(tmp_path: Path, base: Path, kept: str, same: bool) -> None:
    path = [f"finetune.weights.path={base}", f"finetune.weights.head={kept}", "seed=7", "trainer.epochs=1"]
    tuned(tmp_path / "run", "cnn", "head", watching(), *path)
    assert loaded_as(read_weights(base).state, but="nothing" if same else "head.weight") or not same
    assert same_bits(start()["head.weight"], read_weights(base).state["head.weight"]) == same


# Earlier fine-tunings as a base


def test_a_run_with_lora_is_merged_to_be_a_base(tmp_path: Path, bases: dict[str, Path], cli: Cli) -> None:
    few = "data.dataset.classes=4"
    first = tuned(tmp_path / "first", "cnn", "lora", few, f"finetune.weights.path={bases['cnn']}", "optim.lr=0.05")
    assert cli("ckpt", "merge", str(first), "merged.pt").code == 0
    merged = torch.load("merged.pt", weights_only=True)
    folder = tuned(tmp_path / "run", "cnn", "lora", watching(), f"finetune.weights.path={first}", "trainer.epochs=1")
    assert complaints(folder) == []
    assert loaded_as(merged)


def test_what_cannot_be_merged_is_no_base(cli: Cli, project: Path, tmp_path: Path, bases: dict[str, Path]) -> None:
    first = tuned(tmp_path / "first", "cnn", "adapter", f"finetune.weights.path={bases['cnn']}", "trainer.epochs=1")
    done = cli("train", *options("cnn", "full", f"finetune.weights.path={first}"))
    assert done.code == 2, done.err
    assert "cannot be merged" in done.err
    assert "Traceback" not in done.err
    assert not any(project.rglob("config.yaml"))


# Teachers

WINE = [*SHORT, "data=wine", "trainer.epochs=8", "data.batch_size=32"]


def epochs(folder: Path, name: str) -> list[float]:
    return [row[name] for row in read_jsonl(folder / "metrics.jsonl") if name in row]


@pytest.mark.thorough
def test_a_student_learns_from_a_teacher(tmp_path: Path) -> None:
    long = ["model.hidden=[32,32]", "trainer.epochs=25", "optim.lr=0.01", "trainer.test=best"]
    teacher = run(tmp_path / "teacher", *WINE, *long)
    before = {file: file.stat().st_mtime_ns for file in teacher.rglob("*")}
    student = ["model.hidden=[6]", f"finetune.distill.teacher={teacher}", "finetune.distill.weight=1.0"]
    folder = run(tmp_path / "run", *WINE, *student, "optim.lr=0.01", "trainer.epochs=20", "trainer.test=best")
    results = [json.loads((place / "result.json").read_text()) for place in (teacher, folder)]
    assert results[0]["test"]["test/accuracy"] >= 0.9
    assert results[0]["test"]["test/loss"] < epochs(folder, "val/loss")[0]
    losses = epochs(folder, "train/loss")
    assert losses[-1] < losses[len(losses) // 2] < losses[0]
    # It has only seen the teacher's outputs, no target.
    assert results[1]["test"]["test/accuracy"] >= 0.85
    assert {file: file.stat().st_mtime_ns for file in teacher.rglob("*")} == before
    assert complaints(folder) == []


def test_a_teacher_is_not_in_the_checkpoint_and_a_finished_run_needs_it_no_more(cli: Cli, tmp_path: Path) -> None:
    first = run(tmp_path / "first", *WINE, "model.hidden=[32,32]", "trainer.epochs=1")
    student = [*WINE, "model.hidden=[6]", "trainer.epochs=1"]
    plain_run = run(tmp_path / "plain", *student)
    folder = run(tmp_path / "run", *student, f"finetune.distill.teacher={first}")
    taught, alone = content(folder), content(plain_run)
    assert {name: tensor.shape for name, tensor in taught["model"].items()} == {
        name: tensor.shape for name, tensor in alone["model"].items()
    }
    assert moved(alone["model"], taught["model"])
    assert not any(32 in tensor.shape for tensor in tensors(taught))
    first.rename(tmp_path / "gone")
    assert cli("eval", str(folder)).code == 0
    assert cli("predict", str(folder)).code == 0


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors(item)]


@pytest.mark.thorough(first=0)
def test_a_fine_tuned_run_teaches_a_fine_tuning(tmp_path: Path, bases: dict[str, Path]) -> None:
    path = f"finetune.weights.path={bases['cnn']}"
    first = tuned(tmp_path / "first", "cnn", "lora", path)
    folder = tuned(tmp_path / "run", "cnn", "lora", watching(), path, f"finetune.distill.teacher={first}")
    assert complaints(folder) == []
    assert not any("teacher" in name for name in content(folder)["model"])
    assert Runner(load_run(folder).cfg, folder).evaluate("test")["test/loss"] > 0


# Averages


@pytest.mark.thorough
def test_two_fine_tunings_are_averaged_and_measured(cli: Cli, tmp_path: Path, bases: dict[str, Path]) -> None:
    path = f"finetune.weights.path={bases['mlp']}"
    runs = [tuned(tmp_path / f"run{seed}", "mlp", "lora", path, f"seed={seed}") for seed in (1, 2)]
    done = cli("ckpt", "average", *map(str, runs), "soup.pt")
    assert done.code == 0, done.err
    for number, folder in enumerate(runs):
        assert cli("ckpt", "merge", str(folder), f"{number}.pt").code == 0
    parts = [torch.load(f"{number}.pt", weights_only=True) for number in (0, 1)]
    soup = torch.load("soup.pt", weights_only=True)
    assert moved(parts[0], parts[1])
    for name, tensor in soup.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, (parts[0][name] + parts[1][name]) / 2, atol=1e-6)
    done = cli("eval", str(runs[0]), "--checkpoint", "soup.pt")
    assert done.code == 0, done.err
    measured = json.loads((runs[0] / "eval-test.json").read_text())["metrics"]
    assert 0 < measured["test/loss"] < 2
    assert measured["test/accuracy"] >= 1 / 3
    assert cli("eval", str(runs[1]), "--checkpoint", "soup.pt", "--split", "val").code == 0
    greedy = cli("ckpt", "average", *map(str, runs), "greedy.pt", "--greedy")
    assert greedy.code == 2
    assert "lightkit ensemble RUN RUN --method greedy" in greedy.err
