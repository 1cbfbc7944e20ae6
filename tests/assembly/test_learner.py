"""Every option of conf/ builds the part it describes, on data small enough to do so in a moment."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lightkit.assembly import Learner, build
from lightkit.common.errors import UserError
from lightkit.config import compose
from tests.conftest import Outcome

CONF = Path(__file__).parents[2] / "conf"
NEEDS_A_TARGET = "custom"
TOKENS = ["data=text", "data.dataset.max_chars=20000", "data.dataset.context_length=16"]


def options(group: str) -> list[str]:
    names = sorted(path.stem for path in (CONF / group).glob("*.yaml") if not path.stem.startswith("_"))
    assert names
    return [name for name in names if name != NEEDS_A_TARGET]


def built(tmp_path: Path, *overrides: str) -> Learner:
    return build(compose([*overrides, "device=cpu", "device.threads=1"]).cfg, tmp_path)


def one_step(parts: Learner) -> float:
    """Loss of the first training batch, and a step on it."""
    parts.network.train()
    batch = next(iter(parts.data.train.epoch(0)))
    loss = parts.task.step(parts.network, parts.engine.move(batch), parts.criterion).loss
    parts.engine.backward(loss)
    parts.engine.step(parts.optimizer)
    parts.data.close()
    return loss.item()


def data_overrides(name: str, folder: Path) -> list[str]:
    """What an option of `data` needs: files of its own where it reads some."""
    if name == "csv":
        rows = [[f"{i * 0.1:.1f}", f"{i % 7}", "yes" if i % 3 else "no"] for i in range(60)]
        with open(folder / "table.csv", "w", newline="") as file:
            csv.writer(file).writerows([["a", "b", "label"], *rows])
        return [f"data.dataset.path={folder}/table.csv", "data.dataset.target=label"]
    if name == "image_folder":
        return [*_images(folder), "data.num_workers=0", "model=cnn"]
    if name == "torchvision":
        return ["data.dataset.name=FakeData", "+data.dataset.options={size: 40, image_size: [3, 8, 8]}", "model=cnn"]
    if name == "text":
        return [*TOKENS[1:], "model=transformer_lm"]
    return ["data.dataset.train=64", "data.dataset.val=16", "data.dataset.test=16"] if name == "shapes" else []


def _images(folder: Path) -> list[str]:
    from PIL import Image

    for number in range(40):
        place = folder / "pictures" / ("light" if number % 2 else "dark")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (number * 6, 40, 200 * (number % 2))).save(place / f"{number}.png")
    return [f"data.dataset.root={folder}/pictures", "data.dataset.size=16"]


SUITED = {
    "adapter": ["model=cnn"],
    "prefix": ["model=transformer"],
    "lora": ["model=transformer"],
}


SUITS = {
    "mse": ["data=diabetes"],
    "l1": ["data=diabetes"],
    "huber": ["data=diabetes"],
    "bce_with_logits": ["data=digits_multilabel"],
    "token_cross_entropy": [*TOKENS, "model=lstm_lm"],
}


DATA_OF_METRICS = {
    "regression": ["data=diabetes"],
    "multilabel": ["data=digits_multilabel"],
    "language_modeling": [*TOKENS, "model=lstm_lm", "data.batch_size=4"],
    "binary": ["data.dataset.task=binary", "data.dataset.target=label"],
}


# Those of rankings need the query of each sample, which the README's recipe has.


@pytest.mark.thorough
@pytest.mark.parametrize("group", ["device", "ensemble", "trainer", "checkpoint", "logger"])
def test_every_other_option_builds(group: str, tmp_path: Path) -> None:
    for name in options(group):
        if group == "device" and name in ("cuda", "mps"):
            continue
        build(compose(["data=wine", f"{group}={name}"]).cfg, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("parallel", ["none", "dp"])
def test_precision_and_parallel_combine_and_keep_the_saved_names(precision: str, parallel: str, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", f"device.precision={precision}", f"device.parallel={parallel}")
    assert torch.isfinite(torch.tensor(one_step(parts)))
    assert not any(name.startswith("module.") for name in parts.model.state_dict())


def test_a_first_batch_is_tried(tmp_path: Path) -> None:
    sizes = ["model.in_features=13", "model.out_features=2"]
    with pytest.raises(UserError, match=r"model: the output does not go with the targets: .*[\s\S]*num_classes=3"):
        built(tmp_path, "data=wine", "model=custom", "model._target_=torch.nn.Linear", *sizes)


OWN = """\
import torch
from torch import nn


class Lazy(nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()
        self.head = nn.LazyLinear(num_classes)

    def forward(self, x):
        return self.head(x)


def metric():
    return nn.Linear(2, 2)
"""


def test_a_function_that_gives_no_metric_is_told_before_anything_is_written(
    cli: Callable[..., Outcome], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network that nothing can be tried with, too."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (project / "own_metric.py").write_text(OWN)
    done = cli(
        *("train", "data=wine", "model=custom", "model._target_=own_metric.Lazy", "metrics.monitor=val/loss"),
        "metrics.test.own._target_=own_metric.metric",
    )
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "metrics.test.own: not a metric" in done.err
    assert "'Linear'" in done.err
    assert sorted(path.name for path in project.iterdir() if path.name != "__pycache__") == [
        "experiments",
        "own_metric.py",
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("name", options("optim"))
def test_every_optimizer_moves_every_parameter(name: str, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", f"optim={name}", "model.hidden=[8]")
    before = [parameter.detach().clone() for parameter in parts.model.parameters()]
    one_step(parts)
    assert not any(torch.equal(a, b) for a, b in zip(before, parts.model.parameters(), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("name", options("scheduler"))
def test_every_scheduler_steps(name: str, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", f"scheduler={name}", "model.hidden=[8]")
    for _ in range(parts.timetable.total_steps):
        parts.optimizer.step()
        parts.scheduler.step()
    parts.scheduler.epoch_end(1.0)
    assert all(group["lr"] >= 0 for group in parts.optimizer.param_groups)


def test_groups_follow_the_rules(tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", "optim.rules=[{match: 'head*', name: head, lr_scale: 10}]", "optim.lr=0.01")
    rates = {group["name"]: group["initial_lr"] for group in parts.optimizer.param_groups}
    assert rates["head"] == pytest.approx(0.1) if "head" in rates else max(rates.values()) == pytest.approx(0.1)
