from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, check, compose
from lightkit.config.origins import Sources
from tests.config.conftest import Write
from tests.waiting import PATIENCE_SECONDS

Report = Callable[..., str]
Compose = Callable[..., Composed]

# Override, and what the report must say about it.
BAD = [
    ("optim.lrr=0.1", ["optim.lrr: torch.optim.SGD takes no such argument", "did you mean optim.lr?"]),
    ("trainer.epoch=3", ["trainer.epoch: unknown key", "did you mean trainer.epochs?"]),
    ("epochs=3", ["epochs: unknown key", "did you mean trainer.epochs?"]),
    ("sede=3", ["sede: unknown key", "did you mean seed?"]),
    ("optm=sgd", ["optm: unknown key", "did you mean optim?"]),
    ("trainer.ema.dekay=0.9", ["trainer.ema.dekay: unknown key", "did you mean trainer.ema.decay?"]),
    ("data.split.vall=0.2", ["data.split.vall: unknown key", "did you mean data.split.val?"]),
    ("data.dataset.row=3", ["data.dataset.row: toy.Data takes no such argument", "did you mean data.dataset.rows?"]),
    ("data.augment=[{_target_: toy.Noise, scael: 1}]", ["data.augment[0].scael: toy.Noise takes no such argument"]),
    ("data.augment=[{_target_: toy.Nois}]", ["data.augment[0]._target_: toy.Nois does not exist", "toy.Noise?"]),
    ("data.augment=[{scale: 1}]", ["data.augment[0]._target_: missing"]),
    ("data.augment=[3]", ["data.augment[0]: wrong type", "a mapping with `_target_`"]),
    ("metrics.val.accuracy.topk=3", ["metrics.val.accuracy.topk", "did you mean metrics.val.accuracy.top_k?"]),
    ("metrics.val.f1._target_=torchmetrics.F1Scor", ["torchmetrics.F1Scor does not exist", "torchmetrics.F1Score?"]),
    ("metrics._target_=toy.Net", ["metrics._target_: unknown key: nothing is built from this node", "monitor, test"]),
    ("metrics.monitor=val/acuracy", ["no metric of that name is measured", "nearest: val/accuracy"]),
    ("metrics.monitor=accuracy", ["metrics.monitor: no metric of that name is measured"]),
    ("model._target_=toy.Nett", ["model._target_: toy.Nett does not exist", "did you mean toy.Net?"]),
    ("model._target_=toi.Net", ["model._target_: toi.Net does not exist: there is no such module"]),
    ("model._target_=torch.optm.SGD", ["torch.optm.SGD does not exist", "torch.optim.SGD?"]),
    ("model._target_=Net", ["model._target_: Net does not exist: there is no such module"]),
    ("model._target_=torch", ["a module is not something to build"]),
    ("model._target_=3", ["model._target_: wrong type"]),
    ("model=any", ["model._target_: a value is missing", "'???'"]),
    ("model.hidden=3", ["model.hidden: wrong type", "a list (a whole number each)", "write [3]"]),
    ("model.body={_target_: toy.Net, hiden: [1]}", ["model.body.hiden: toy.Net takes no such argument"]),
    ("model.body=[{_target_: toy.Noise, scale: loud}]", ["model.body[0].scale: wrong type", "'loud'"]),
    ("optim.lr='0.1'", ["optim.lr: wrong type", "write 0.1 without quotes"]),
    ("optim.lr=fast", ["optim.lr: wrong type", "a number", "'fast'"]),
    ("optim.lr=null", ["optim.lr: wrong type", "received: 'null'"]),
    ("optim.lr=0", ["optim.lr: out of range", "above 0", "freeze"]),
    ("optim.lr=-1", ["optim.lr: out of range", "optim.lr=1, without the sign"]),
    ("optim.nesterov='true'", ["optim.nesterov: wrong type", "without quotes"]),
    ("optim.rules=[{match: head.*, lr: 0}]", ["optim.rules[0].lr: out of range", "freeze"]),
    ("optim.rules=[{lr: 0.1}]", ["optim.rules[0].match: missing"]),
    ("optim.rules=[{match: a, lrscale: 2}]", ["optim.rules[0].lrscale: unknown key", "optim.rules[0].lr_scale?"]),
    ("scheduler.warmpu=1", ["scheduler.warmpu: toy.Schedule takes no such argument", "scheduler.warmup?"]),
    ("scheduler._target_=torch.optim.lr_scheduler.StepLR", ["goes inside of scheduler=torch", "_partial_: true"]),
    ("trainer.task._target_=toy.Task.mak", ["the class Task has no method of that name"]),
    ("trainer.task={_target_: toy.Task.make}", ["trainer.task.weight: missing: toy.Task.make needs it"]),
    ("trainer.callbacks.mine.weight=3", ["trainer.callbacks.mine._target_: missing"]),
    ("trainer.epochs=1.0", ["trainer.epochs: wrong type", "write 1"]),
    ("trainer.epochs=null", ["trainer.epochs: training has no end"]),
    ("trainer=3", ["no such option", "default"]),
    ("data.split={by: random, val: 0.5, test: 0.6}", ["data.split: val and test leave no training rows"]),
    ("data.split={by: file, val: 0.5, test: 0.5}", ["data.split: val and test leave no training rows"]),
    ("data.split={by: fold, fold: 5}", ["data.split.fold: out of range", "0 to 4"]),
    ("seed=???", ["seed: a value is missing"]),
    ("name=a/b", ["name: can't be part of a folder's name"]),
    ("extra.a=${trainer.epoch}", ["extra.a: the interpolation can't be resolved", "${trainer.epochs}?"]),
    ("seed=${oc.env:LIGHTKIT_NOT_SET}", ["seed: the environment variable", "export LIGHTKIT_NOT_SET=VALUE"]),
    ("seed=${nope:1}", ["seed: the interpolation can't be resolved"]),
    ("~optim._target_", ["optim._target_: missing"]),
    ("~data", ["data: missing"]),
    ("~metrics.monitor", ["metrics.monitor: missing"]),
    ("~data.dataset.rows", ["data.dataset.rows: missing: toy.Data needs it", "command line: ~data.dataset.rows"]),
    ("~model.hiden", ["there is nothing of that name to remove", "~model.hidden"]),
    ("optim=sgdd", ["optim: no such option", "adam", "fix:      optim=sgd"]),
    ("optim=null", ["optim: an option is missing"]),
    ("experiment=nope", ["experiment: no such option"]),
    ("optim/rules=a", ["there is no such group"]),
    ("optim.lr=0.1,0.2", ["several runs, which wants -m"]),
    ("optim.lr", ["this override can't be read"]),
    ("optim.lr={", ["this override can't be read"]),
    ("hydra.run.dri=/tmp/x", ["hydra.run.dri"]),
    ("~optm.lr", ["there is nothing of that name to remove", "~optim.lr"]),
    ("metrics.val.acuracy.average=micro", ["metrics.val.acuracy: unknown name", "did you mean metrics.val.accuracy?"]),
    ("optim._tagret_=toy.Net", ["torch.optim.SGD takes no such argument", "did you mean optim._target_?"]),
    ("optim._target_=", ["is not a dotted path"]),
    ("loss.reduction=none", ["a loss is the mean over the samples", "fix:      loss.reduction=mean"]),
    ("loss.reduction=maen", ["loss.reduction", "received: 'maen'"]),
    ("data.split=[1]", ["data.split: wrong type", "expected: a mapping", "received: 'a list'"]),
    ("data.augment={a: 1}", ["data.augment: wrong type", "expected: a list", "received: 'a mapping'"]),
    ("optim.params=[1]", ["optim.params: this is filled in", "remove it: ~optim.params"]),
    ("scheduler.optimizer=3", ["scheduler.optimizer: this is filled in"]),
    ("optim.lr={_target_: torch.tensor, data: 0.1}", ["optim.lr: wrong type", "expected: a number"]),
    ("metrics.monitor=val/loss/cat", ["no metric of that name is measured", "nearest: val/loss"]),
    ("trainer.epochs[0]=1", ["what is before the = is no key"]),
]


# What is wrong, and overrides of which each has this mistake.
ALIKE = {
    "out of range": """
        loss.label_smoothing=2 optim.lr=-1 optim.layer_decay=1.5 trainer.epochs=-1 trainer.validate_every=0
        trainer.ema.decay=1 trainer.watch.every=0 data.batch_size=0 data.split.val=1.5 data.num_workers=-1 seed=-1
        checkpoint.keep_last=0 device.threads=1000000000000 device.ddp.timeout_seconds=1e30 device.ddp.bucket_mib=0
        device.dp_dim=-1 device.memory_fraction=0 device.nproc=0 metrics.val.accuracy.top_k=0 sweep.slurm.time=0
        finetune.head.weight_decay=-1 finetune.gradual.layers=0 finetune.lora.rank=0 finetune.lora.alpha=0
        finetune.lora.dropout=1 finetune.lora.lr_ratio=0 finetune.adapter.reduction=0 finetune.adapter.width=0
        finetune.prefix.length=0 finetune.distill.temperature=0 finetune.distill.weight=1.5 finetune.layer_decay=0
    """,
    "wrong type": """
        data.augment=3 loss.reduction=[1] optim.lr=true optim.nesterov=1 optim._args_=3 optim._partial_=3
        trainer.epochs=true trainer.callbacks.mine=3 trainer.ema=3 trainer.watch=50 seed=1.5 extra=3
        data.batch_size=1e20 finetune.weights.mapping.a=3 finetune.peft=lora device.gpus=3
        device.activation_checkpointing=blocks sweep.slurm.memory=true
    """,
    "not one of the choices": """
        metrics.mode=maximum model.act=rleu trainer.validate_unit=epochs data.split.by=stratifed device.precision=fp8
        device.compile=fast device.batch_size=64 optim._convert_=some finetune.bn=freeze finetune.dropout=none
        finetune.audit=no finetune.weights.strict=full finetune.head.replace=yes finetune.lora.impl=wrapped
        finetune.adapter.activation=glu finetune.adapter.kind=pfeifer
    """,
}


@pytest.mark.parametrize("what", ALIKE)
def test_values_that_cannot_be_are_told_all_at_once(toy: Path, what: str) -> None:
    overrides = ALIKE[what].split()
    with pytest.raises(UserErrors) as caught:
        compose(overrides)
    found = {(error.key, error.what, error.origin) for error in caught.value.errors}
    assert found == {(text.partition("=")[0], what, f"command line: {text}") for text in overrides}
    assert all(bool(error.choices) == (what == "not one of the choices") for error in caught.value.errors)
    assert all(error.expected or error.choices for error in caught.value.errors)


@pytest.mark.thorough
@pytest.mark.parametrize(("override", "said"), BAD, ids=lambda value: str(value)[:60])
def test_a_mistake_is_reported(report: Report, override: str, said: list[str]) -> None:
    text = report(override)
    for part in said:
        assert part in text
    assert "1 problem found" in text


def test_a_value_in_place_of_a_mapping_names_its_keys(report: Report) -> None:
    assert "fix:      its keys are trainer.watch.every, trainer.watch.action" in report("trainer.watch=3")


def test_every_report_names_the_override(report: Report) -> None:
    for override in ("optim.lrr=0.1", "optim=sgdd", "trainer.epoch=3", "~model.hiden", "seed=-1", "seed=1,2"):
        assert f"command line: {override}" in report(override)


def test_all_mistakes_come_in_one_report(report: Report, write: Write) -> None:
    write("experiments/bad.yaml", "trainer:\n  epoch: 3\ndata:\n  batch_size: many\n")
    text = report("experiment=bad", "optim.lrr=1", "loss=msee", "x={", "~model.nothing", "seed=-1", "+foo=1")
    for part in ("trainer.epoch:", "data.batch_size:", "optim.lrr:", "loss:", "x={", "model.nothing", "seed:", "foo:"):
        assert part in text
    assert "8 problems found" in text
    assert "experiments/bad.yaml:2" in text
    assert "experiments/bad.yaml:4" in text


def test_nothing_is_said_about_a_group_whose_option_is_wrong(report: Report) -> None:
    text = report("optim=adamm", "optim.betas=[0.9,0.99]")
    assert "1 problem found" in text
    assert "1 problem found" in report("experiment=nope", "model.size=3")


def test_pairs_of_numbers(report: Report, composed: Compose) -> None:
    assert composed("optim=adam", "optim.betas=[0,0.9]").cfg.optim.betas == [0, 0.9]
    assert "expected: a list of 2 (a number each)" in report("optim=adam", "optim.betas=[0.9]")
    found = report("optim=adam", "optim.betas=[0.9,1]")
    assert "optim.betas[1]: out of range" in found
    assert "command line: optim.betas=[0.9,1]" in found


def test_a_part_of_an_average_is_never_measured(report: Report, composed: Compose) -> None:
    parts = ["metrics.monitor=val/accuracy/cat", "metrics.val.accuracy.average=none"]
    assert composed(*parts).cfg.metrics.monitor == "val/accuracy/cat"
    assert "no metric of that name" in report(parts[0], "metrics.val.accuracy.average=macro")


def test_reduction_of_a_loss_of_ones_own_is_its_own_matter(composed: Compose) -> None:
    assert composed("loss._target_=toy.anything", "loss.reduction=sum").cfg.loss.reduction == "sum"


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["1", "true", "1.5"])
def test_a_key_that_is_no_text_is_not_overlooked(report: Report, write: Write, key: str) -> None:
    write("experiments/e.yaml", f"{key}: 2\n")
    assert f"{key.title()}: unknown key" in report("experiment=e")


def test_valid_keys_need_no_plus(composed: Compose) -> None:
    cfg = composed("optim.nesterov=true", "trainer.callbacks.x._target_=toy.Hook", "extra.deep.er=[1,{a: 2}]").cfg
    assert cfg.optim.nesterov is True
    assert cfg.extra.deep.er[1].a == 2
    assert composed("+optim.nesterov=true").cfg.optim.nesterov is True
    assert composed("++optim.nesterov=true").cfg.optim.nesterov is True
    assert composed("+optim.lr=0.5").cfg.optim.lr == 0.5


@pytest.mark.thorough
def test_what_is_right_passes(composed: Compose) -> None:
    for override in (
        "trainer.epochs=null + trainer.steps=10",
        "optim.lr=1",
        "optim.lr=1e-3",
        "optim.rules=[{match: [a.*, b], lr_scale: 2}]",
        "model.hidden=[]",
        "model._target_=toy.Wrapped + model.depth=2",
        "model._target_=toy.anything + ~model.act + model.whatever=1",
        "model.body={_target_: toy.Net, hidden: [1], _partial_: true}",
        "trainer.task={_target_: toy.Task.make, weight: 1}",
        "trainer.task={_target_: toy.Task, _args_: [1.0]}",
        "data.augment=[]",
        "data.pin_memory=null",
        "loss.weight=null",
        "seed=${extra.s} + extra.s=3",
        "name='with space'",
        "metrics.monitor=val/loss + metrics.mode=min",
        "metrics.val.f1._target_=torchmetrics.classification.MulticlassF1Score + metrics.val.f1.sync_on_compute=false",
    ):
        composed(*override.split(" + "))


def test_kwargs_handed_to_the_base_are_checked(report: Report) -> None:
    assert "did you mean model.hidden?" in report("model._target_=toy.Wrapped", "model.hiden=[1]")
    assert "takes no such argument" in report("metrics.val.accuracy.sync_on_computee=false")


def test_arguments_left_over_from_another_target_are_named(report: Report, write: Write) -> None:
    write("experiments/wide.yaml", "model:\n  hidden: [9]\n")
    text = report("experiment=wide", "model._target_=toy.Small")
    assert "remove it: ~model.hidden; model=custom starts without any" in text
    assert "experiments/wide.yaml:2" in text


def test_interpolated_values_are_checked(report: Report) -> None:
    text = report("trainer.epochs=${name}")
    assert "trainer.epochs: wrong type" in text
    assert "'toy'" in text


def test_origins_are_lines_of_the_file_that_wins(report: Report, write: Write) -> None:
    assert "conf/model/wide.yaml:4" in _with(
        write, report, "conf/model/wide.yaml", "# W.\ndefaults:\n  - net\nhiden: [1]\n"
    )
    write("experiments/e.yaml", "model:\n  act: nope\n")
    assert "experiments/e.yaml:2" in report("experiment=e")
    assert "command line: model.act=nix" in report("experiment=e", "model.act=nix")


def _with(write: Write, report: Report, name: str, text: str) -> str:
    write(name, text)
    return report("model=wide")


def test_a_list_takes_its_lines_from_the_file_that_sets_it(report: Report, write: Write) -> None:
    write(
        "experiments/e.yaml",
        "data:\n  augment:\n    - _target_: toy.Noise\n    - _target_: toy.Noise\n      scale: x\n",
    )
    assert "data.augment[1].scale: wrong type\n    at:       experiments/e.yaml:5" in report("experiment=e")


def test_shipped_files_are_named_in_full_from_elsewhere(toy: Path) -> None:
    origin = compose([]).sources.find("trainer.epochs")
    assert origin is not None
    assert Path(origin.rpartition(":")[0]).is_absolute()


def test_check_takes_any_configuration() -> None:
    with pytest.raises(UserErrors, match="data: missing"):
        check(OmegaConf.create({"nmae": "x"}))
    with pytest.raises(UserErrors, match="nmae: unknown key"):
        check(OmegaConf.create({"nmae": "x"}), Sources())


def test_a_configuration_that_contains_itself_is_refused(report: Report) -> None:
    assert "extra.a: the interpolation can't be resolved" in report("extra.a=${extra}")
    assert "extra.a: refers to itself: extra.a → extra.b → extra.a" in report(
        "extra.a=${extra.b}", "extra.b=${extra.a}"
    )


def test_defaults_of_the_schema_are_written_out_and_frozen(composed: Compose) -> None:
    cfg = composed("optim.rules=[{match: a}]").cfg
    assert cfg.data.mixup.alpha is None
    assert cfg.data.split.folds == 5
    assert cfg.optim.rules[0].lr_scale is None
    assert cfg.optim.no_decay is False
    assert OmegaConf.is_readonly(cfg)
    assert "hydra" not in cfg


def test_nothing_heavy_is_imported(toy: Path, root: Path) -> None:
    code = (
        "import sys; from lightkit.config import compose\n"
        "compose([])\n"
        "try: compose(['optim.lrr=1', 'model._target_=toy.Nett'])\nexcept ValueError: pass\n"
        "bad = [m for m in ('torch', 'torchmetrics', 'numpy', 'sklearn', 'toy') if m in sys.modules]\n"
        "assert not bad, bad"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=toy, env={"PYTHONPATH": str(root)}, check=True, timeout=PATIENCE_SECONDS
    )


def test_a_syntax_error_in_own_code(write: Write, report: Report) -> None:
    write("mine.py", "class Net:\n    def __init__(self, hidden):\n        self.x = = 1\n")
    write("way.py", "from mine import Net\n")
    for target in ("mine.Net", "way.Net"):
        found = report(f"model._target_={target}")
        assert f"{target} can't be read, as its file is no valid Python: mine.py:3: invalid syntax" in found
        assert "fix:      mend mine.py:3" in found


@pytest.mark.thorough
@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_numbers_must_be_finite(report: Report, value: str) -> None:
    found = report(f"optim.lr={value}")
    assert "optim.lr: out of range" in found
    assert f"at:       command line: optim.lr={value}" in found
    assert "and finite" in found


def test_device_names(report: Report, toy: Path) -> None:
    found = report("device.name=cdua")
    assert "device.name: no such device" in found
    assert "at:       command line: device.name=cdua" in found
    assert "nearest: cuda" in found
    assert "no such device" in report("device.name='cuda:x'")
    assert compose(["device.name='cuda:3'"]).cfg.device.name == "cuda:3"


def test_choices_by_a_name_of_their_own(write: Write, report: Report) -> None:
    write("mode_names.py", "from typing import Literal\n\nMode = Literal['fast', 'slow']\n")
    text = "from mode_names import Mode\n\n\ndef f(num_classes, mode: Mode = 'fast'): ...\n"
    write("named.py", text)
    write("conf/model/named.yaml", "_target_: named.f\n")
    found = report("model=named", "model.mode=fst")
    assert "model.mode: not one of the choices" in found
    assert "nearest: fast" in found
