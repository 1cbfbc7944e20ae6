"""A whole configuration is checked in one report, with defaults, origins and without an import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.common.strategies import STRATEGIES
from lightkit.config import Composed, check, compose, load_run, save
from lightkit.config.arguments import KINDS, mismatch
from lightkit.config.check import check_values
from lightkit.config.device_relations import DEVICE_RULES
from lightkit.config.fields import defaults_of
from lightkit.config.finetuning import FINETUNE_RULES
from lightkit.config.origins import Sources
from lightkit.config.policy import Trust
from lightkit.config.project import located, shipped_conf
from lightkit.config.relations import RULES
from lightkit.config.schema.device import DeviceConfig
from lightkit.config.tree import Report as Problems
from lightkit.config.tree import plain_tree
from tests.config.conftest import Write

Report = Callable[..., str]
Compose = Callable[..., Composed]

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
        device.compile=fast trainer.find_batch_size=64 optim._convert_=some finetune.bn=freeze finetune.dropout=none
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


def test_all_mistakes_come_in_one_report(report: Report, write: Write) -> None:
    write("experiments/bad.yaml", "trainer:\n  epoch: 3\ndata:\n  batch_size: many\n1: 2\n")
    text = report("experiment=bad", "optim.lrr=1", "loss=msee", "x={", "~model.nothing", "seed=-1", "+foo=1")
    for part in ("trainer.epoch", "data.batch_size", "optim.lrr", "loss", "model.nothing", "seed", "foo", "1"):
        assert f"{part}: " in text
    assert "x={" in text
    assert "9 problems found" in text
    assert "experiments/bad.yaml:2" in text
    assert "experiments/bad.yaml:4" in text


def test_a_problem_of_one_key_hides_no_other_rule(report: Report) -> None:
    text = report(
        *("trainer.epochs=many", "data.split.fold=x", "data.split={by: random, val: 0.5, test: 0.6}"),
        *("loss.reduction=none", "finetune.rules=[2,{match: a, lr: 1, lr_scale: 1}]", "finetune.lora=3", "name=a/b"),
        *("finetune.schedule=[{epoch: x, freeze: [a]},{epoch: 1}]", "finetune.gradual.every_epochs=x"),
    )
    for part in (
        *("trainer.epochs: wrong type", "loss.reduction: a loss is the mean", "optim.rules[0]: wrong type"),
        *("optim.rules[1]: sets either lr or lr_scale", "finetune.schedule[0].epoch: wrong type"),
        *("finetune.schedule[1]: nothing begins", "finetune.lora: wrong type", "name: can't be part"),
    ):
        assert part in text
    assert "1 problem found" in report("data.split.by=fold", "data.split.fold=9", "data.split.folds=1")


@pytest.mark.parametrize("overrides", [[], ["device=fsdp", "finetune=[lora,gradual]", "data.split.by=fold"]])
def test_no_rule_reads_what_is_not_there(project: Path, overrides: list[str]) -> None:
    problems = Problems(Sources())
    problems.trust = Trust()
    cfg = check_values(plain_tree(compose(overrides).cfg, problems), problems)
    for rule in (*RULES, *DEVICE_RULES, *FINETUNE_RULES):
        rule(**{name: problems if name == "report" else getattr(cfg, name) for name in signature(rule).parameters})
    assert problems.errors == []


def test_valid_keys_need_no_plus_and_defaults_are_written_out(composed: Compose) -> None:
    cfg = composed("optim.nesterov=true", "trainer.callbacks.x._target_=toy.Hook", "extra.deep.er=[1,{a: 2}]").cfg
    assert cfg.optim.nesterov is True
    assert cfg.extra.deep.er[1].a == 2
    cfg = composed(
        "+optim.nesterov=true", "optim.rules=[{match: a}]", "finetune.schedule=[{epoch: 1, freeze: [a]}]"
    ).cfg
    assert cfg.optim.nesterov is True
    assert (cfg.data.mixup.alpha, cfg.data.split.folds, cfg.optim.no_decay) == (None, 5, False)
    assert (cfg.optim.rules[0].lr_scale, cfg.optim.rules[0].allow_zero) == (None, False)
    assert (cfg.finetune.schedule[0].unfreeze, cfg.finetune.schedule[0].step) == ([], None)
    assert OmegaConf.is_readonly(cfg)
    assert "hydra" not in cfg
    assert composed("++optim.lr=0.5").cfg.optim.lr == 0.5


def test_a_part_of_an_average_is_never_measured(report: Report) -> None:
    parts = ["metrics.monitor=val/accuracy/cat", "metrics.val.accuracy.average=macro"]
    assert "no metric of that name" in report(*parts)


def test_origins_are_lines_of_the_file_that_wins(report: Report, write: Write) -> None:
    write("conf/model/wide.yaml", "# W.\ndefaults:\n  - net\nhiden: [1]\n")
    assert "conf/model/wide.yaml:4" in report("model=wide")
    write("experiments/e.yaml", "model:\n  act: nope\n  hidden: [9]\n")
    assert "experiments/e.yaml:2" in report("experiment=e")
    assert "command line: model.act=nix" in report("experiment=e", "model.act=nix")
    text = report("experiment=e", "model._target_=toy.Small")
    assert "remove it: ~model.hidden; model=custom starts without any" in text
    assert "experiments/e.yaml:3" in text
    augment = "  augment:\n    - _target_: toy.Noise\n    - _target_: toy.Noise\n      scale: x\n"
    write("experiments/e.yaml", f"data:\n{augment}")
    assert "data.augment[1].scale: wrong type\n    at:       experiments/e.yaml:5" in report("experiment=e")
    origin = compose([]).sources.find("trainer.epochs")
    assert origin is not None
    assert Path(origin.rpartition(":")[0]).is_absolute(), "a shipped file is named in full"


def test_check_takes_any_configuration() -> None:
    with pytest.raises(UserErrors, match="data: missing"):
        check(OmegaConf.create({"nmae": "x"}))
    with pytest.raises(UserErrors, match="nmae: unknown key"):
        check(OmegaConf.create({"nmae": "x"}), Sources())


def test_a_syntax_error_in_own_code(write: Write, report: Report) -> None:
    write("mine.py", "class Net:\n    def __init__(self, hidden):\n        self.x = = 1\n")
    write("way.py", "from mine import Net\n")
    for target in ("mine.Net", "way.Net"):
        found = report(f"model._target_={target}")
        assert f"{target} can't be read, as its file is no valid Python: mine.py:3: invalid syntax" in found
        assert "fix:      mend mine.py:3" in found


def test_choices_by_a_name_of_their_own(write: Write, report: Report) -> None:
    write("mode_names.py", "from typing import Literal\n\nMode = Literal['fast', 'slow']\n")
    write("named.py", "from mode_names import Mode\n\n\ndef f(num_classes, mode: Mode = 'fast'): ...\n")
    write("conf/model/named.yaml", "_target_: named.f\n")
    found = report("model=named", "model.mode=fst")
    assert "model.mode: not one of the choices" in found
    assert "nearest: fast" in found


def test_what_the_devices_share_is_what_the_schema_says() -> None:
    shared = yaml.safe_load((shipped_conf() / "device/_base.yaml").read_text(encoding="utf-8"))
    own = [field.name for field in fields(DeviceConfig) if not field.metadata.get("internal") and field.name != "name"]
    assert list(shared) == own
    assert shared == {name: value for name, value in defaults_of(DeviceConfig).items() if name in own}


def test_times_of_slurm(write: Write, report: Report) -> None:
    options = compose(["sweep.slurm.time=60", "sweep.slurm.account=00123", "sweep.slurm.memory=16"]).sweep["slurm"]
    assert [str(options[name]) for name in ("time", "account", "memory")] == ["60", "00123", "16"]
    write("experiments/e.yaml", "sweep: {engine: slurm, slurm: {time: 12:00:00}}\n")  # 43200: thirty days of minutes
    text = report("experiment=e")
    assert "sweep.slurm.time: YAML reads this time as a number of seconds" in text
    assert 'time: "12:00:00"' in text
    write("experiments/e.yaml", "sweep: {engine: slurm, slurm: {time: '12:00:00'}}\n")
    assert compose(["experiment=e"]).sweep["slurm"]["time"] == "12:00:00"


def test_processes_that_compute_the_same_batch_need_no_sample_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "ddp", replace(STRATEGIES["ddp"], splits_batches=False))
    assert compose(["device=ddp", "data.batch_size=1"]).cfg.data.batch_size == 1


def test_files_are_looked_for_in_the_project_and_its_outputs(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy / "outputs" / "runs" / "today" / "one"
    run.mkdir(parents=True)
    save(compose([]).cfg, run)
    (toy / "deep").mkdir()
    monkeypatch.chdir(toy / "deep")
    monkeypatch.setenv("HOME", str(toy))
    for text in (str(run), "../outputs/runs/today/one", "outputs/runs/today/one", "runs/today/one", "~/outputs"):
        assert located(text).resolve() in (run, toy / "outputs")
    compose(["finetune.distill.teacher=runs/today/one", "finetune.weights.path='~/outputs'"])
    with pytest.raises(UserErrors, match=r"(?s)no such file or folder.*choices: +runs/today/one"):
        compose(["finetune.weights.path=runs/today/two"])


def test_a_run_that_was_trained_needs_its_base_no_more(toy: Path) -> None:
    run, weights = toy / "outputs" / "run", toy / "base.pt"
    run.mkdir(parents=True)
    weights.touch()
    save(compose(["finetune.weights.path=base.pt"]).cfg, run)
    weights.unlink()
    assert load_run(run).cfg.finetune.weights.path == "base.pt"
    with pytest.raises(UserErrors, match="finetune.lora.rank: out of range"):
        load_run(run, ["finetune.lora.rank=0"])


FITTING = """
model: torchvision.models.resnet18 torch.nn.Identity no.such.Class
loss: torch.nn.functional.cross_entropy torch.nn.CrossEntropyLoss lightkit.losses.FocalLoss
optim: timm.optim.Lamb
scheduler: lightkit.optim.Cosine
metrics.val.f1: torchmetrics.classification.MulticlassF1Score torchmetrics.MetricCollection
trainer.task: lightkit.trainer.tasks.Supervised
data.dataset: torch.optim.SGD
model.body: torch.optim.SGD
"""


def test_what_fits_its_place_or_cannot_be_told_passes() -> None:
    for line in FITTING.strip().splitlines():
        key, _, targets = line.partition(": ")
        for target in targets.split():
            assert mismatch(target, tuple(key.split("."))) is None, target
    for place in KINDS.keys() - {("optim",), ("optim", "parts", "*")}:
        assert mismatch("torch.optim.SGD", tuple("val" if part == "*" else part for part in place)), place
