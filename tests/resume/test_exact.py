"""A run that is killed at any moment and resumed leaves the same bits behind as one that was never stopped."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from lightkit.checkpoint.reading import read
from lightkit.device import switches as compiling
from tests.resume.harness import BASE, Case, configured, foreign_draws
from tests.resume.sets import text_file

SETS = "tests.resume.sets"
WINE, DRAWING = "data=wine", f"data=custom data.dataset._target_={SETS}.Drawing data.persistent_workers=true"
SIZES = "data.dataset.size=16 data.dataset.train=96 data.dataset.val=24 data.dataset.test=24"
SHAPES = f"data=shapes model=cnn model.channels=[4,8] {SIZES} ~model.hidden"
WEIGHTY = f"data=custom data.dataset._target_={SETS}.Weighty data.batch_size=7"
TRANSFORMS = "lightkit.data.transforms"
AUGMENTED = f"data.augment=[{{_target_:{TRANSFORMS}.GaussianNoise}},{{_target_:{TRANSFORMS}.FeatureDropout}}]"
TURNED = f"data.augment=[{{_target_:{TRANSFORMS}.RandomAffine}},{{_target_:{TRANSFORMS}.RandomFlip}}]"
TEXT = (
    "data=text data.dataset.path=TEXT data.dataset.pattern=*.txt data.dataset.context_length=16 model=transformer_lm"
    " model.dim=8 model.depth=1 model.heads=2 model.dropout=0.1 ~model.hidden"
)
BY_STEPS = "trainer.validate_unit=step trainer.validate_every=2"
MORE = "data.more={few:{split:{val:0,test:0.1}}}"
ON_LOSS = "metrics.monitor=val/loss metrics.mode=min"
ON_TRAINING = "metrics.monitor=train/loss metrics.mode=min"
CONFIGURATIONS = {
    "much at once": ("micro save", f"{WINE} model.norm=batch model.dropout=0.3 trainer.accumulate=2 data.batch_size=8"
                     " optim=sgd optim.momentum=0.9 trainer.ema.decay=0.9 trainer.clip_norm=0.5 data.mixup.alpha=0.4"
                     f" scheduler=plateau scheduler.patience=0 {ON_LOSS} {BY_STEPS} {MORE}"),
    "dropout, accumulation": ("step", f"{WINE} model.dropout=0.3 trainer.accumulate=2 data.batch_size=8"),
    "ema, clipping": ("validation test", f"{WINE} optim=sgd optim.momentum=0.9 trainer.ema.decay=0.9"
                      " trainer.clip_norm=0.5 data.batch_size=11"),
    "plateau": ("validation save", f"{WINE} scheduler=plateau scheduler.patience=0 {ON_LOSS} {BY_STEPS} optim.lr=0.3"),
    "mean of epochs, epochs of steps": ("micro validation save", f"{WINE} model.norm=batch trainer.swa.from_epoch=2"
                                        " trainer.epoch_steps=5 trainer.accumulate=2 trainer.epochs=4"
                                        " data.split.val_limit=9 data.drop_last=true"),
    "mixup and CutMix": ("micro", f"{SHAPES} data.mixup.alpha=0.2 data.mixup.cutmix_alpha=1 trainer.epoch_steps=3"),
    "early stopping at a target": ("test", f"{WINE} trainer.early_stopping.target=0.5 trainer.early_stopping.patience=9"
                                   " trainer.early_stopping.from_epoch=2"),
    "early stopping": ("validation test", f"{WINE} trainer.early_stopping.patience=3 {BY_STEPS} optim.lr=0.5"),
    "augmentation in memory": ("step", f"{WINE} {AUGMENTED} model.dropout=0.1 data.drop_last=true"),
    "drawn pictures": ("micro", f"{SHAPES} {TURNED}"),
    "fp16": ("micro", f"{SHAPES} device.precision=fp16 trainer.clip_norm=1.0 trainer.accumulate=2"),
    "overflows": ("step save", f"{WINE} device.precision=fp16 loss=custom loss._target_={SETS}.Overflows optim=adamw"),
    "bf16-true": ("micro", f"{SHAPES} device.precision=bf16-true device.channels_last=true trainer.ema.decay=0.9"),
    "fp64, computed twice": ("step", f"{WINE} device.precision=fp64 model.dropout=0.3 model.norm=batch"
                             " device.activation_checkpointing=[layers] device.optimizer=loop optim=nadam"),
    "bf16": ("step", f"{SHAPES} device.precision=bf16 data.drop_last=true"),
    "map-style": ("micro", DRAWING),
    "workers": ("step", f"{DRAWING} data.num_workers=2"),
    "weights, similar lengths": ("micro", f"{WEIGHTY} data.sampler=length data.num_workers=2 trainer.accumulate=2"),
    "weights, balanced draws": ("step validation", f"{WEIGHTY} data.sampler=balanced loss.weight=balanced"),
    "weighted draws": ("micro", f"{WEIGHTY} data.sampler=weighted"),
    "text": ("validation", TEXT),
    "members in one network": ("micro", f"{WINE} model=tabm model.k=4 model.dropout=0.2 device.precision=bf16"),
    "penalty": ("micro", f"{WINE} model=soft_tree model.depth=2 data.batch_size=8 trainer.accumulate=2 ~model.hidden"),
    "regression, monitored in training": ("save", f"data=diabetes {ON_TRAINING} data.batch_size=64 data.split.val=0.2"
                                          " trainer.epochs=4"),
    "multilabel, step schedule": ("step", "data=digits_multilabel data.batch_size=256 scheduler=step"
                                  " scheduler.every_epochs=1"),
    "binary, linear": ("micro", "data=breast_cancer data.batch_size=64 scheduler=linear scheduler.warmup_steps=4"),
    "one cycle, steps": ("save", f"{WINE} scheduler=one_cycle trainer.steps=19 trainer.accumulate=3 data.batch_size=4"),
    "torch schedule": ("step test", f"{WINE} scheduler=torch scheduler.interval=step trainer.test=last"),
    "constant, no validation": ("step", f"{WINE} scheduler=constant data.split.val=0 {ON_TRAINING} optim=rmsprop"),
    "sam": ("step validation", f"{WINE} optim=sam model.norm=batch model.dropout=0.3 trainer.accumulate=2"
            f" data.batch_size=8 trainer.clip_norm=0.5 scheduler=wsd scheduler.decay_share=0.5 {BY_STEPS}"),
    "lbfgs": ("step", f"{WINE} optim=lbfgs optim.max_iter=4 optim.lr=1.0 data.batch_size=64 scheduler=constant"),
    "muon": ("micro", f"{WINE} optim=muon model.hidden=[8,8] scheduler=inverse_sqrt"),
    "sparse": ("micro", TEXT.partition(" model=")[0] + " model=custom model._target_=torch.nn.Embedding"
               " model.num_embeddings=99 model.embedding_dim=99 model.sparse=true optim=sparse_adam ~model.hidden"
               " trainer.clip_norm=1.0"),
    "schedule-free": ("step validation", f"{WINE} optim=schedule_free optim.warmup_steps=5 scheduler=constant"
                      f" model.dropout=0.3 {BY_STEPS}"),
    "skipped steps": ("micro", f"{WINE} loss=custom loss._target_={SETS}.Explodes trainer.nonfinite.action=skip"
                      " trainer.nonfinite.limit=100 checkpoint.asynchronous=false"),
    "steps, rare saves": ("step", f"{WINE} trainer.steps=21 trainer.validate_unit=step trainer.validate_every=5"
                          " checkpoint.every_steps=4 checkpoint.every_epochs=null"
                          f" +trainer.callbacks.foreign._target_={SETS}.ForeignDraws"),
}  # fmt: skip
"""The phases in which each is killed, and its overrides."""


class Cases(dict[str, Case]):
    """The uninterrupted runs, each made once."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place = place

    def __missing__(self, name: str) -> Case:
        place = self.place / name.replace(", ", "-").replace(" ", "-")
        place.mkdir()
        text = text_file(place / "text.txt")
        overrides = CONFIGURATIONS[name][1].replace("TEXT", str(text)).split()
        left_out = {override.lstrip("~") for override in overrides if override.startswith("~")}
        base = [override for override in BASE if override.partition("=")[0] not in left_out]
        self[name] = Case(configured(*(o for o in overrides if not o.startswith("~")), base=base), place)
        return self[name]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return Cases(tmp_path_factory.mktemp("cases"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "phase"), [(name, phase) for name, (phases, _) in CONFIGURATIONS.items() for phase in phases.split()]
)
def test_a_killed_run_ends_with_the_same_bits(cases: dict[str, Case], name: str, phase: str) -> None:
    case = cases[name]
    moment = random.Random(f"{name} {phase}").choice(case.moments(phase))
    place = case.kill(moment, phase)
    case.resume(place, before=foreign_draws)
    assert case.differences(place) == [], f"killed at {moment}"


def test_steps_that_overflow_are_left_out_and_counted(cases: dict[str, Case]) -> None:
    result = json.loads((cases["overflows"].whole / "result.json").read_text())
    assert 0 < result["scaler_skipped_steps"] < result["steps"]
    assert result["scaler_skipped_steps"] == result["metrics"]["amp/skipped_steps"]


def test_averages_in_8_bits_resume_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao")
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)  # the same numbers, sooner
    case = Case(configured(WINE, "optim=adamw8bit", "model.hidden=[64,64]", "trainer.epochs=2"), tmp_path)
    place = case.kill(case.moments("step")[3], "step")
    case.resume(place)
    assert case.differences(place) == []
    newest = max((place / "checkpoints").glob("step-*.pt"))
    state = read(newest)["optimizer"]["state"]
    assert state["layers.linear1.weight"]["exp_avg"]["tensors"]["codes"].dtype == torch.uint8


@pytest.mark.thorough
def test_compiled_code_resumes_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    compiled = [WINE, "model.dropout=0.3", "device.compile=default", "device.deterministic=true"]
    case = Case(configured(*compiled), tmp_path)
    assert "not compiled" not in (case.whole / "run.log").read_text()
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "micro")
    case.resume(place, before=foreign_draws)
    assert case.differences(place) == []
