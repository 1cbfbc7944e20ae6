"""Samples of any kind, with whatever a run does with them; and samples that are not like the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import tv_tensors

from lightkit.data import build_data
from lightkit.data.collates import listed
from lightkit.doctor import checks
from tests.data import kinds

Cli = Callable[..., Any]
KINDS = ["Listed", "Padded", "Dataclasses", "Dicts", "Tuples", "NamedTuples", "Targets", "TvTensors"]


@pytest.fixture
def words(project: Path, cli: Cli) -> Callable[..., list[str]]:
    (project / "kinds.py").write_text(Path(kinds.__file__).read_text())

    def of(kind: str, *more: str) -> list[str]:
        made = ["data.collate._target_=lightkit.data.collates.listed"] if kind == "Listed" else []
        plain = ["data=custom", f"data.dataset._target_=kinds.{kind}", "model=custom", "model._target_=kinds.Net"]
        plain += [
            "trainer.task._target_=kinds.AnyKind",
            "data.batch_size=8",
            "trainer.epochs=2",
            "logger.every_steps=1",
        ]
        return [*plain, "metrics.monitor=val/accuracy", "logger.tensorboard.enabled=false", *made, *more]

    return of


def losses(folder: Path) -> list[Any]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["train/loss_step"]) for row in rows if "train/loss_step" in row]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_goes_through_a_run_and_all_that_looks_at_it(cli: Cli, project: Path, words: Any, kind: str) -> None:
    def done(*command: str) -> str:
        outcome = cli(*command)
        assert outcome.code == 0, outcome.err
        return str(outcome.out)

    whole, cut = project / "whole", project / "cut"
    done("train", *words(kind), f"hydra.run.dir={whole}")
    stopped = ("trainer.stop_at=8 steps", "trainer.smoke=false", "data.num_workers=0")
    done("train", *words(kind, *stopped), f"hydra.run.dir={cut}")
    done("resume", str(cut), "trainer.stop_at=null", "data.num_workers=1")
    assert losses(cut) == losses(whole)
    done("eval", str(whole))
    assert len(Path(done("predict", str(whole)).split()[-1]).read_text().splitlines()) == 1 + 12
    for command in (["data", *words(kind)], ["results", str(whole)], ["worst", str(whole)]):
        done("show", *command)
    done("summary", *words(kind))


LOOKS = ("labels", "splits", "answers", "features", "leaks", "scale", "loss", "loss of rows", "evaluation")
ALL = tuple(name for name, _ in checks.CHECKS)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "names"), [("Listed", LOOKS), ("Listed", ALL), ("Dataclasses", ALL)])
def test_the_doctor_looks_at_samples_of_ones_own(
    cli: Cli, words: Any, monkeypatch: pytest.MonkeyPatch, kind: str, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(checks, "CHECKS", tuple(check for check in checks.CHECKS if check[0] in names))
    done = cli("doctor", *words(kind))
    assert done.code == 0, done.err


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_is_shared_by_processes(cli: Cli, process: Cli, project: Path, words: Any, kind: str) -> None:
    one, two = project / "one", project / "two"
    for start, folder, more in ((cli, one, ()), (process, two, ("device=ddp", "device.name=cpu", "device.nproc=2"))):
        done = start(
            "train",
            *words(kind, "trainer.epochs=1", "device.precision=bf16-true", "model.dropout=0", *more),
            f"hydra.run.dir={folder}",
        )
        assert done.code == 0, done.err
    for (_, alone), (_, shared) in zip(losses(one), losses(two), strict=True):
        assert shared == pytest.approx(alone, rel=0.02)


@pytest.mark.thorough(first=4)
@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("Odd", ["they do not hold the same things", "sample 33 is not like sample 0", "label: int"]),
        ("Ranks", ["sample 33 is not like sample 0", "image: (4, 4) float32"]),
        ("Kind", ["sample 33 is not like sample 0", "((3, 4, 4) float32, int)"]),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_of_another_structure_is_named(
    cli: Cli, words: Any, kind: str, texts: list[str], workers: int
) -> None:
    done = cli("train", *words(kind, f"data.num_workers={workers}", "data.split.test=0"))
    assert done.code == 2
    assert not [text for text in texts if text not in done.err], done.err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["data.augment=[{_target_: lightkit.data.transforms.RandomFlip}]"], "data.augment: only the inputs of"),
        (["data.normalize=standard"], "data.normalize: only pairs"),
        (["data.mixup.alpha=0.2"], "data.mixup.alpha"),
        (["ensemble=voting"], "`info` of the data set tells what outputs are compared with: DataInfo('multiclass'"),
        (["data.collate._target_=kinds.Label"], "data.collate._target_"),
        (["data.collate._target_=kinds.Labels"], "data.collate.key: missing"),
        (["data.collate={_target_: kinds.numbers, kex: name}"], "data.collate.kex"),
        (["data.collate={_target_: kinds.Labels, key: other}"], "data.collate failed on rows"),
    ],
)
def test_what_does_not_go_with_samples_of_ones_own_is_told_before_training(
    cli: Cli, words: Any, more: list[str], text: str
) -> None:
    done = cli("train", *words("Dicts", *more))
    assert (done.code, text in done.err) == (2, True), done.err


def test_members_vote_on_samples_whose_kind_of_target_is_told(cli: Cli, project: Path, words: Any) -> None:
    short = ("trainer.epochs=1", "metrics.figures=[]", "hydra.run.dir=run")
    done = cli("train", *words("Told", "ensemble=voting", "ensemble.size=2", *short))
    assert done.code == 0, done.err
    whole = json.loads((project / "run/result.json").read_text())["test"]
    assert cli("eval", "run").code == 0
    found = json.loads((project / "run/eval-test.json").read_text())
    assert "test/accuracy" in json.dumps(whole)
    assert "test/accuracy" in json.dumps(found)
    assert cli("predict", "run", "--output", "rows.csv").code == 0
    assert len((project / "rows.csv").read_text().splitlines()) == 1 + 12


@pytest.mark.parametrize("node", ["{_target_: kinds.Labels, key: label}"])
def test_a_collate_of_ones_own_makes_the_batches(cli: Cli, words: Any, node: str) -> None:
    short = ("data.num_workers=1", "trainer.epochs=1", "trainer.test=none")
    done = cli("train", *words("Padded", "data.dataset._target_=kinds.Dicts", f"data.collate={node}", *short))
    assert done.code == 0, done.err


def test_data_in_memory_are_given_sample_by_sample_to_a_collate() -> None:
    split = {"by": "ordered", "val": 0.0, "test": 0.0}
    x, y = torch.arange(6.0)[:, None], torch.tensor([0, 1] * 3)
    data = build_data(dataset=torch.utils.data.TensorDataset(x, y), split=split, batch_size=6, collate=listed)
    inputs, targets = next(iter(data.train.epoch(0)))
    assert sorted(float(one) for one in inputs) == [0, 1, 2, 3, 4, 5]
    assert [int(one) % 2 for one in inputs] == [int(one) for one in targets]


def test_batches_of_each_kind() -> None:
    def batch(kind: Any) -> Any:
        data = build_data(dataset=kind(), split={"by": "ordered", "val": 0.0, "test": 0.0}, batch_size=4)
        return next(iter(data.evaluation("train").epoch(0)))  # type: ignore[union-attr]

    item = batch(kinds.Dataclasses)
    assert (item.name, item.mask, item.weight.dtype) == (["n0", "n1", "n2", "n3"], None, torch.float32)
    assert item.computed.tolist() == [0.5] * 4
    assert type(batch(kinds.NamedTuples)) is kinds.Named
    assert batch(kinds.Dicts)["nested"]["numbers"][1].dtype == torch.float32
    assert batch(kinds.TvTensors)["mask"].shape == (4, 4, 4)
    lists = listed([kinds.Listed().sample(row) for row in range(3)])
    assert [type(each["boxes"]) for each in lists[1]] == [tv_tensors.BoundingBoxes] * 3
    assert listed([{"a": 1}, {"a": 2}]) == {"a": [1, 2]}
    assert listed(["a", "b"]) == ["a", "b"]
