"""Every option of conf/ builds the part it describes, on data small enough to do so in a moment."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lightkit.assembly import Learner, build
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.device.casting import FullLoss
from lightkit.device.stepping import implementation_of
from lightkit.trainer.step import trial_stepper
from tests.conftest import Outcome

CONF = Path(__file__).parents[2] / "conf"
LEFT_OUT = ("custom", "cuda", "hf", "mps", "peft", "ranking", "segmentation_folder")
LEFT_OUT += ("coco", "detection", "detector", "of_model")
"""Options that need a target, a device, another package or its files, or the query of each sample; and those of boxes,
whose training makes no predictions: `tests/data/test_annotated.py` has whole runs of these."""
PACKAGES = {"torchvision": "torchvision", "timm": "timm", "schedule_free": "schedulefree", "adamw8bit": "torchao"}
"""What some options need."""
TOKENS = ["data=text", "data.dataset.max_chars=20000", "data.dataset.context_length=16", "data.batch_size=4"]
IMAGES = ["data=shapes", "data.dataset.train=16", "data.dataset.val=8", "data.dataset.test=8", "data.batch_size=4"]
FAKE = "+data.dataset.options={size: 40, image_size: [3, 8, 8]}"
HEADS = [
    "data=custom",
    "data.dataset._target_=tests.resume.sets.TwoTargets",
    "metrics=none",
    "metrics.monitor=val/loss",
    "model.heads={kind: 3, size: 1}",
    "loss.losses={kind: {_target_: torch.nn.CrossEntropyLoss}, size: {_target_: torch.nn.MSELoss}}",
]
SCENES = ["data=custom", "data.dataset._target_=experiments.segment_shapes.scenes.Masks", "data.dataset.size=32"]
SCENES += [
    *(f"data.dataset.{split}=8" for split in ("train", "val", "test")),
    "data.split.by=file",
    "data.batch_size=4",
]
BIGRAMS = [
    "model._target_=torch.nn.Embedding",
    "model.sparse=true",
    "model.num_embeddings=99",
    "model.embedding_dim=99",
]
GAN = ["data=custom", "data.dataset._target_=experiments.gan_ring.ring.Ring", "model=custom", "loss=bce_with_logits"]
GAN += [
    "model._target_=experiments.gan_ring.ring.Networks",
    "trainer.task._target_=lightkit.trainer.GAN",
]
GAN += ["trainer.task.latent=8", "metrics=none", "metrics.monitor=val/loss"]
GAN += ["optim.parts={discriminator: {_target_: torch.optim.Adam, match: discriminator}, "
        "generator: {_target_: torch.optim.Adam, match: generator}}"]  # fmt: skip
NEEDS = {
    "data=torchvision": ["data.dataset.name=FakeData", FAKE, "model=cnn"],
    "data=text": [*TOKENS[1:], "model=transformer_lm"],
    "data=shapes": IMAGES[1:],
    "model=unet": [*SCENES, "metrics=segmentation"],
    "model=heads": [*HEADS, "loss=by_head"],
    "loss=by_head": [*HEADS, "model=heads"],
    "loss=bce_with_logits": ["data=digits_multilabel"],
    "loss=token_cross_entropy": [*TOKENS, "model=lstm_lm"],
    "metrics=regression": ["data=diabetes"],
    "metrics=multilabel": ["data=digits_multilabel"],
    "metrics=language_modeling": [*TOKENS, "model=lstm_lm"],
    "optim=several": GAN,
    "optim=sparse_adam": [*TOKENS, "model=custom", *BIGRAMS],
    "finetune=adapter": ["model=cnn"],
    "finetune=prefix": ["model=transformer"],
    "finetune=lora": ["model=transformer"],
    **{f"loss={name}": ["data=diabetes"] for name in ("mse", "l1", "huber")},
}
"""What else is chosen for an option; models with `_lm` take tokens, the others images."""


def options(*groups: str) -> list[str]:
    found = [f"{group}={path.stem}" for group in groups for path in sorted((CONF / group).glob("[!_]*.yaml"))]
    return [option for option in found if option.partition("=")[2] not in LEFT_OUT]


def needs(option: str, folder: Path) -> list[str]:
    group, _, name = option.partition("=")
    if option in ("data=csv", "data=table", "model=tabular", "metrics=binary"):
        with open(folder / "table.csv", "w", newline="") as file:
            rows = [[f"{i * 0.1:.1f}", f"{i % 7}", "yes" if i % 3 else "no"] for i in range(60)]
            csv.writer(file).writerows([["a", "b", "label"], *rows])
        table = ["data=csv", f"data.dataset.path={folder}/table.csv", "data.dataset.target=label"]
        return table[group == "data" :] + ["data.dataset.task=binary", "loss=bce_with_logits"] * (group != "data")
    if option in ("data=texts", "metrics=tagging"):
        rows = [{"text": "a b c" if i % 3 else "d e", "target": "x y x" if i % 3 else "y x"} for i in range(40)]
        (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
        texts = ["data=texts", f"data.dataset.path={folder}/texts.jsonl", "data.dataset.tags=true", "metrics=tagging"]
        return texts[option == "data=texts" : 3 + (option == "data=texts")]
    if option in ("data=series", "metrics=forecast"):
        (folder / "series.csv").write_text("\n".join(["time,value", *(f"{at},{at % 7}" for at in range(200))]))
        task = ["trainer.task._target_=lightkit.trainer.Forecast", "model=mlp"]
        return [*["data=series"][option == "data=series" :], f"data.dataset.path={folder}/series.csv", *task]
    if option == "data=image_folder":
        return [*_images(folder), "data.num_workers=0", "model=cnn"]
    if option == "data=stream":
        rows = (json.dumps({"x": [0.5, i], "kind": i % 2}) + "\n" for i in range(60))
        (folder / "rows.jsonl").write_text("".join(rows))
        return [f"data.dataset.path={folder}/rows.jsonl", "data.dataset.target=kind", "data.num_workers=0"]
    if group == "model" and option not in NEEDS:
        return TOKENS if name.endswith("_lm") else IMAGES
    return NEEDS.get(option, [] if group == "data" else ["data=digits"])


def _images(folder: Path) -> list[str]:
    from PIL import Image

    for number in range(40):
        place = folder / "pictures" / ("light" if number % 2 else "dark")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (number * 6, 40, 200 * (number % 2))).save(place / f"{number}.png")
    return [f"data.dataset.root={folder}/pictures", "data.dataset.size=16"]


def built(tmp_path: Path, *overrides: str) -> Learner:
    return build(compose([*overrides, "device=cpu", "device.threads=1"]).cfg, tmp_path)


def one_step(parts: Learner) -> float:
    """Loss of the first training batch, and a step on it, which metrics take."""
    parts.network.train()
    batch = parts.engine.move(next(iter(parts.data.train.epoch(0))))
    stepper = trial_stepper(parts)
    assert stepper.micro(batch, position=0, size=len(batch[0]), window=len(batch[0]), more=False)
    step = parts.task.step(parts.network, batch, parts.criterion)
    stepper.update(usable=True, want_norm=True)
    parts.data.close()
    for split in ("train", "val", "test"):
        parts.metrics[split].update(step.preds, step.target, step.loss, len(batch[0]))
        assert f"{split}/loss" in parts.metrics[split].compute()
    return step.loss.item()


@pytest.mark.filterwarnings("ignore:No positive samples")  # a batch of four rows lacks some classes
@pytest.mark.thorough
@pytest.mark.parametrize("option", options("optim", "model", "finetune", "data", "loss", "metrics"))
def test_every_option_trains_a_step(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PACKAGES.get(option.partition("=")[2])
    if package:
        pytest.importorskip(package)
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)  # what 8-bit optimizers do, slower
    parts = built(tmp_path, option, *needs(option, tmp_path))
    before = [parameter.detach().clone() for parameter in parts.model.parameters()]
    assert torch.isfinite(torch.tensor(one_step(parts)))
    still = [torch.equal(old, new) for old, new in zip(before, parts.model.parameters(), strict=True)]
    assert not any(still) if option.startswith("optim=") else not all(still)


@pytest.mark.thorough
@pytest.mark.parametrize("option", options("scheduler", "device", "ensemble", "trainer", "checkpoint", "logger"))
def test_every_other_option_builds(option: str, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", "model.hidden=[8]", option, "trainer.epochs=5")
    for _ in range(parts.timetable.total_steps if option.startswith("scheduler") else 1):
        parts.optimizer.step()
        parts.scheduler.step()
    parts.scheduler.epoch_end(1.0)
    assert all(group["lr"] >= 0 for group in parts.optimizer.param_groups)


def test_the_model_is_a_function_of_the_seed(tmp_path: Path) -> None:
    first, again = (built(tmp_path, "data=wine", "seed=5").model.state_dict() for _ in range(2))
    other = built(tmp_path, "data=wine", "seed=6").model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_any_network_by_its_path_that_has_something_to_train(tmp_path: Path) -> None:
    linear = ("model=custom", "model._target_=torch.nn.Linear", "model.in_features=13")
    assert isinstance(built(tmp_path, "data=wine", *linear, "model.out_features=3").model, nn.Linear)
    with pytest.raises(UserError, match=r"model: the output does not go with the targets: .*[\s\S]*num_classes=3"):
        built(tmp_path, "data=wine", *linear, "model.out_features=2")
    with pytest.raises(UserError, match="the model has no trainable parameter"):
        built(tmp_path, "data=wine", "model=custom", "model._target_=torch.nn.Flatten")
    with pytest.raises(UserError, match=r"device\.activation_checkpointing: the pattern matches no module"):
        built(tmp_path, "data=wine", "device.activation_checkpointing=[blocks.*]")


@pytest.mark.thorough
@pytest.mark.parametrize(("asked", "every"), [([], 8), (["data.batch_size=2"], 50), (["logger.every_steps=90"], 90)])
def test_training_values_are_logged_once_an_epoch_at_the_least(tmp_path: Path, asked: list[str], every: int) -> None:
    assert built(tmp_path, "data=wine", *asked).timetable.log_steps == every


def test_a_missing_device_says_what_there_is(tmp_path: Path) -> None:
    for name in [name for name in ("cuda", "mps") if not getattr(torch, name).is_available()]:
        with pytest.raises(UserError, match=r"device\.name[\s\S]*device=cpu"):
            build(compose(["data=wine", f"device={name}"]).cfg, tmp_path)


STEPS = {
    "": "fused",
    "optim=rmsprop": "",
    "device.optimizer=loop": "loop",
    "device.optimizer=foreach optim=rmsprop": "foreach",
    "+optim.foreach=true": "foreach",
    "+optim.fused=false": "",
}


@pytest.mark.thorough
@pytest.mark.parametrize("typed", STEPS)
def test_how_the_optimizer_steps(typed: str, tmp_path: Path) -> None:
    assert implementation_of(built(tmp_path, "data=wine", *typed.split()).optimizer) == STEPS[typed]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("precision", "weights"),
    [("tf32", torch.float32), ("fp16", torch.float32), ("bf16-true", torch.bfloat16), ("fp64", torch.float64)],
)
def test_weights_have_the_format_they_train_in(precision: str, weights: torch.dtype, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", f"device.precision={precision}", "trainer.ema.decay=0.9", "model.norm=batch")
    held = [parameter for group in parts.optimizer.param_groups for parameter in group["params"]]
    assert {parameter.dtype for parameter in held} == {weights}
    assert {id(parameter) for parameter in held} == {id(parameter) for parameter in parts.model.parameters()}
    assert isinstance(parts.criterion, FullLoss) == (precision == "fp16")


class Weighted(torch.nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__(torch.ones(3))


def test_class_weights_follow_the_precision(tmp_path: Path) -> None:
    loss = ["data=wine", "loss=custom", "loss._target_=tests.assembly.test_learner.Weighted"]
    for precision, kind in (("fp64", torch.float64), ("bf16-true", torch.float32)):
        assert built(tmp_path, *loss, f"device.precision={precision}").criterion.weight.dtype == kind  # type: ignore[union-attr]


def test_precision_and_parallel_combine_and_keep_the_saved_names(tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", "device.precision=bf16", "device.parallel=dp")
    assert torch.isfinite(torch.tensor(one_step(parts)))
    assert not any(name.startswith("module.") for name in parts.model.state_dict())


def test_groups_follow_the_rules(tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", "optim.rules=[{match: 'head*', name: head, lr_scale: 10}]", "optim.lr=0.01")
    rates = {group["name"]: group["initial_lr"] for group in parts.optimizer.param_groups}
    assert rates["head"] == pytest.approx(0.1) if "head" in rates else max(rates.values()) == pytest.approx(0.1)


OWN = """\
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
    names = sorted(path.name for path in project.iterdir() if path.name != "__pycache__")
    assert names == ["experiments", "own_metric.py"]
