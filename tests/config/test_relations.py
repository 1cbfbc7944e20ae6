"""Rules between keys see defaults and checked values only; most of what they refuse is in test_check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.strategies import STRATEGIES
from lightkit.config import compose, to_plain
from lightkit.config.check import check_values
from lightkit.config.device_relations import DEVICE_RULES
from lightkit.config.finetuning import FINETUNE_RULES
from lightkit.config.origins import Sources
from lightkit.config.policy import Trust
from lightkit.config.project import shipped_conf
from lightkit.config.relations import RULES
from lightkit.config.schema.device import DeviceConfig
from lightkit.config.tree import Report as Problems
from lightkit.config.tree import plain_tree

Report = Callable[..., str]


@pytest.mark.parametrize("overrides", [[], ["device=fsdp", "finetune=[lora,gradual]", "data.split.by=fold"]])
def test_no_rule_reads_what_is_not_there(project: Path, overrides: list[str]) -> None:
    problems = Problems(Sources())
    problems.trust = Trust()
    cfg = check_values(plain_tree(compose(overrides).cfg, problems), problems)
    for rule in (*RULES, *DEVICE_RULES, *FINETUNE_RULES):
        rule(cfg, problems)
    assert problems.errors == []


def test_defaults_of_keys_that_are_nowhere_set_count(report: Report) -> None:
    text = report("finetune.schedule=[{epoch: 20, freeze: [a]}]", "~trainer.epochs")
    assert "finetune.schedule[0].epoch: this comes after the last epoch" in text
    assert "1 problem found" in text


def test_a_problem_of_one_key_hides_no_other_rule(report: Report) -> None:
    text = report(
        "trainer.epochs=many",
        "data.split.fold=x",
        "data.split={by: random, val: 0.5, test: 0.6}",
        "loss.reduction=none",
        "finetune.rules=[2,{match: a, lr: 1, lr_scale: 1}]",
        "finetune.schedule=[{epoch: x, freeze: [a]},{epoch: 1}]",
        "name=a/b",
    )
    for part in (
        "trainer.epochs: wrong type",
        "loss.reduction: a loss is the mean",
        "finetune.rules[0]: wrong type",
        "finetune.rules[1]: sets either lr or lr_scale",
        "finetune.schedule[0].epoch: wrong type",
        "finetune.schedule[1]: nothing begins",
        "name: can't be part",
    ):
        assert part in text


def test_a_rule_is_over_where_a_key_that_it_reads_has_a_problem(report: Report) -> None:
    for text in (
        report("finetune.schedule=[{epoch: 20, freeze: [a]}]", "trainer.epochs=0"),
        report("data.split.by=fold", "data.split.fold=9", "data.split.folds=1"),
        report("finetune.freeze=[*]", "finetune.train=3"),
    ):
        assert "1 problem found" in text


def test_the_warmup_is_given_once(report: Report) -> None:
    text = report(
        "scheduler={_target_: lightkit.optim.Constant}", "+scheduler.warmup_steps=3", "+scheduler.warmup_epochs=1"
    )
    assert "the warm-up is given twice" in text


def refused(*overrides: str) -> str:
    with pytest.raises(UserErrors) as caught:
        compose(list(overrides))
    return str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["device.gpus=[]"], ["device.gpus: this chooses no GPU", "a list of GPU numbers such as [0, 2], or of UUIDs"]),
        (["device.gpus=[0,0]"], ["device.gpus: a GPU is named twice"]),
        (["device.gpus=[-1]"], ["device.gpus: not the numbers or UUIDs of GPUs"]),
        (["device.gpus=freest"], ["device.gpus: not a choice of GPUs", "received: 'freest'"]),
        (["device.gpus=[a]"], ["device.gpus: not the numbers or UUIDs of GPUs"]),
        (["device.gpus=[1.5]"], ["device.gpus: wrong type"]),
        (["device.gpus=auto:2", "device.name=cuda:2"], ["device.name: device.gpus=auto:2 leaves 2 to see"]),
        (["device.gpus=[5]", "device.name=cuda:5"], ["device.gpus=[5] leaves 1 to see", "device.name=cuda is the"]),
        (["device.precision=fp64", "device=mps"], ["device.precision: Apple's GPUs have no float64"]),
        (["device.precision=tf32", "device.matmul=highest"], ["device.matmul: this is not what", "device.matmul=auto"]),
        (
            ["device.deterministic=true", "device.cudnn_benchmark=true"],
            [
                "device.cudnn_benchmark: taking the fastest",
                "device.cudnn_benchmark=false or device.deterministic=false",
            ],
        ),
        (
            ["device.deterministic=true", "device.compile=max-autotune"],
            ["device.compile: the kernels are chosen by timing them", "fix:      device.compile=default"],
        ),
        (
            ["device.parallel=dp", "device.compile=default", "device.cuda_graphs=true"],
            [
                "device.compile: this does not go with DataParallel",
                "device.cuda_graphs: this does",
                "cuda_graphs=false",
            ],
        ),
        (["device.optimizer=fused", "optim=rmsprop"], ["torch.optim.RMSprop has none", "choices:  auto, foreach,"]),
        (["device.optimizer=loop", "+optim.fused=true"], ["device.optimizer: optim.fused chooses as well"]),
        (["device.activation_checkpointing=['re:(']"], ["device.activation_checkpointing[0]: not a regular"]),
        (["device.dp_output=1"], ["device.dp_output: only device.parallel=dp joins", "device.parallel=dp or"]),
        (["device.cudnn=false", "device.cudnn_benchmark=true"], ["device.cudnn_benchmark: cuDNN is not used"]),
        (["trainer.clip_type=1"], ["trainer.clip_type: this norm limits nothing", "trainer.clip_norm=1.0"]),
        (["trainer.clip_type=0", "trainer.clip_norm=1"], ["trainer.clip_type: no such norm", "above 0, or inf"]),
        (["trainer.clip_type=two", "trainer.clip_norm=1"], ["trainer.clip_type: no such norm", "received: 'two'"]),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(overrides, parts):
    found = refused(*overrides)
    for part in parts:
        assert part in found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "overrides",
    [
        ["device.gpus=[0,2]"],
        ["device.gpus=auto:2", "device.name=cuda:1"],
        ["device.gpus=[0,2]", "device=cpu"],
        ["device.gpus=auto:1", "device.wait=true"],
        ["device.wait=true", "device=cpu"],
        ["device.gpus=[MIG-3d6e2b0c-1b2c-5d1e]"],
        ["device.gpus=MIG-GPU-3d6e2b0c/7/0"],
        ["device.cuda_graphs=true", "device.compile=default", "device=cpu"],
        ["device.cudnn_benchmark=true", "device=cpu"],
        ["device.precision=tf32", "device.matmul=medium"],
        ["device.optimizer=fused", "optim=adamw"],
        ["device.optimizer=foreach", "optim=rmsprop"],
        ["+optim.fused=true"],
        ["device.activation_checkpointing=['blocks.*', 're:^head$']"],
        ["device.deterministic=true", "device.compile=default"],
        ["device.parallel=dp", "device.dp_dim=1", "device.dp_output=1"],
        ["device.cudnn=false", "device.memory_fraction=0.5", "device=cpu"],
        ["trainer.clip_norm=1", "trainer.clip_type=inf"],
        ["trainer.clip_norm=1", "trainer.clip_type='inf'"],
        ["trainer.clip_norm=1", "trainer.clip_type=1"],
        ["trainer.watch.every=null"],
        ["ensemble=bagging", "ensemble.resample=folds", "ensemble.size=null", "data.split.by=ordered"],
    ],
)
def test_what_can_be(overrides):
    compose(overrides)


def test_what_the_devices_share_is_what_the_schema_says() -> None:
    shared = yaml.safe_load((shipped_conf() / "device/_base.yaml").read_text(encoding="utf-8"))
    assert shared == {name: value for name, value in asdict(DeviceConfig()).items() if name != "name"}
    assert list(shared) == [name for name in vars(DeviceConfig()) if name != "name"]


@pytest.mark.parametrize(
    "typed",
    [
        ["sweep.slurm.time=60", "sweep.slurm.account=123456", "sweep.slurm.memory=16", "sweep.slurm.partition=2080"],
        ["sweep.slurm.time=12:00:00", "sweep.slurm.account=00123", "sweep.slurm.memory=16G"],
        ["sweep.engine=slurm", "sweep.slurm.time=UNLIMITED"],
        ["sweep.slurm.time=1"],  # of jobs that run elsewhere
        ["sweep.time_limit=90", "sweep.stall_limit=30m", "sweep.budget=1:30:00"],
    ],
)
def test_what_a_queue_is_told_may_be_a_number(project: Path, typed: list[str]) -> None:
    options = compose(typed).sweep
    for text in typed:
        key, _, value = text.removeprefix("sweep.").rpartition("=")
        group, _, name = key.rpartition(".")
        assert str((options[group] if group else options)[name]) == value


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("sweep.engine=slurm sweep.slurm.time=1", "sweep.slurm.save_before: a job would be told to save before"),
        ("sweep.engine=slurm sweep.slurm.save_before=3600", "less than the 3600 seconds of sweep.slurm.time=60"),
        ("sweep.engine=slurm sweep.slurm.time=1:00 sweep.slurm.save_before=60", "sweep.slurm.save_before"),
        ("sweep.time_limit=soon", "sweep.time_limit: not a length of time"),
        ("sweep.time_limit=soon", "seconds above 0, or a text such as 90s, 30m, 2h, 1d, 1h30m or 1:30:00, or null"),
        ("sweep.stall_limit=0", "sweep.stall_limit: not a length of time"),
        ("sweep.budget=-1h", "sweep.budget: not a length of time"),
    ],
)
def test_times_of_a_sweep_that_cannot_be(project: Path, typed: str, said: str) -> None:
    with pytest.raises(UserErrors) as found:
        compose(typed.split())
    assert said in str(found.value)


def test_a_time_that_yaml_misreads_is_told(project: Path) -> None:
    (project / "conf").mkdir()
    file = project / "conf" / "config.yaml"
    file.write_text("sweep: {engine: slurm, slurm: {time: 12:00:00}}\n")  # 43200, which would be thirty days
    with pytest.raises(UserErrors) as found:
        compose([])
    assert "sweep.slurm.time: YAML reads this time as a number of seconds" in str(found.value)
    assert 'time: "12:00:00"' in str(found.value)
    file.write_text("sweep: {engine: slurm, slurm: {time: '12:00:00'}}\n")
    assert compose([]).sweep["slurm"]["time"] == "12:00:00"


def test_processes_that_compute_the_same_batch_need_no_sample_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "ddp", replace(STRATEGIES["ddp"], splits_batches=False))
    assert compose(["device=ddp", "data.batch_size=1"]).cfg.data.batch_size == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["device.nproc=2"], r"device\.nproc: several processes share a run only with device\.parallel=ddp"),
        (["device.nproc=2", "device.parallel=dp"], r"device\.nproc: several processes share"),
        (["device=ddp", "device.name=cuda:1"], r"device\.name: one device cannot be that of several processes"),
        (["device=ddp", "device.name=mps"], r"device\.name: one device cannot be"),
        (["device=ddp", "device.nproc=9", "data.batch_size=8"], r"data\.batch_size: 9 processes (.|\n)*at least 9"),
        (["device=ddp", "data.eval_batch_size=1"], r"data\.eval_batch_size: 2 processes \(device\.nproc\) share each"),
        (
            ["device=ddp", "device.gpus=[MIG-1,MIG-2]"],
            r"device\.gpus: 2 processes \(device\.nproc\) need a whole GPU each",
        ),
        (["device.wait=true"], r"device\.wait: device\.gpus=null takes all GPUs(.|\n)*fix: +device\.gpus=auto:1"),
        (["device=ddp", "device.gpus=[0,1]", "device.wait=true"], r"device\.wait: each process would wait for itself"),
        (["device=ddp", "device.nproc=0"], r"device\.nproc: out of range"),
        (["device.ddp.timeout_seconds=-1"], r"device\.ddp\.timeout_seconds: out of range"),
        (
            ["device.ddp.static_graph=true", "trainer.accumulate=2"],
            r"static_graph: PyTorch cannot add up gradients over",
        ),
        (["device=fsdp", "device.compile=default"], r"device\.compile: not with fsdp.*: code is compiled for a whole"),
        (["device=fsdp", "device.channels_last=true"], r"device\.channels_last: not with fsdp.*usual order in memory"),
        (["device=fsdp", "device.cuda_graphs=true"], r"device\.cuda_graphs: not with fsdp.*: kernels are recorded"),
        (
            ["device=fsdp", "finetune.peft={_target_: peft.LoraConfig}"],
            r"finetune\.peft: not with fsdp: the layers of peft",
        ),
        (["device.ddp.bucket=3"], r"device\.ddp\.bucket"),
        (["device=fsdp", "device.batch_size=auto"], r"device\.batch_size: each process holds a part of the model"),
        (
            ["device=ddp", "device.ddp.static_graph=true", "device.batch_size=auto"],
            r"device\.batch_size: the batch may be split, and PyTorch cannot add up",
        ),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["ensemble=voting", "checkpoint=none"], "checkpoint.enabled: an ensemble is made of the checkpoints"),
        (["ensemble=voting", "ensemble.member.index=3"], "ensemble.member.index: the method of an ensemble"),
        (["ensemble=bagging", "ensemble.resample=folds", "ensemble.size=5"], "size: the folds are the members"),
        (["ensemble=bagging", "ensemble.folds=3"], "ensemble.folds: rows are drawn with replacement"),
        (["ensemble.member.weights_of=../../mine"], "ensemble.member.weights_of: the name of a folder leads nowhere"),
        (["ensemble.member.adds_to=[/tmp/mine]"], "ensemble.member.adds_to: the name of a folder leads nowhere"),
        (["ensemble.member.features=[[a],['..']]"], "ensemble.member.features: the name of a folder does not begin"),
        (["ensemble=bagging", "data.split.by=ordered"], "ensemble.resample: a random draw"),
        (["ensemble=snapshot", "trainer.epochs=7"], "trainer.epochs: the cycles of snapshots"),
        (["ensemble=snapshot", "trainer.epochs=null", "trainer.steps=50"], "trainer.steps: the cycles of snapshots"),
        (["ensemble=fast_geometric", "ensemble.low=0.6"], "ensemble.low: the rate of a cycle"),
        (["ensemble=voting", "ensemble.engine=processes", "device=ddp", "device.nproc=2"], "engine: each member"),
    ],
)
def test_what_does_not_go_together_is_told(overrides: list[str], message: str, report: Callable[..., str]) -> None:
    text = report(*overrides)
    assert message in text
    assert "1 problem found" in text


METHODS = sorted(path.stem for path in (shipped_conf() / "ensemble").glob("*.yaml"))


NEEDED = {"snapshot": ["trainer.epochs=10"], "fast_geometric": ["trainer.epochs=10"]}


@pytest.mark.parametrize("method", METHODS)
def test_every_shipped_method_is_composed_and_checked(method: str) -> None:
    composed = compose([f"ensemble={method}", *NEEDED.get(method, [])])
    node = yaml.safe_load((shipped_conf() / "ensemble" / f"{method}.yaml").read_text(encoding="utf-8"))
    node.pop("meta", None)  # its keys become those of the command line
    found = to_plain(composed.cfg.ensemble)
    assert {key: found[key] for key in node} == node


@pytest.mark.parametrize("method", sorted({*METHODS} - {"none"}))
def test_an_unknown_setting_of_a_shipped_method_is_told(method: str, report: Callable[..., str]) -> None:
    text = report(f"ensemble={method}", "ensemble.sizes=3", *NEEDED.get(method, []))
    assert "ensemble.sizes" in text
    assert "1 problem found" in text
