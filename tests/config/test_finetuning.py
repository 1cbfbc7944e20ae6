"""What is wrong with a fine-tuning is told before a model is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, compose, load_run, save
from lightkit.config.project import located

Report = Callable[..., str]
Compose = Callable[..., Composed]

# Overrides, and what the one problem in the report must say.
BAD = [
    ("finetune.freze=[a]", ["finetune.freze: unknown key", "did you mean finetune.freeze?"]),
    ("finetune.freeze=layer1", ["finetune.freeze: wrong type", "write [layer1]"]),
    ("finetune.freeze=[1]", ["finetune.freeze[0]: wrong type"]),
    ("finetune.freeze=['']", ["finetune.freeze[0]: an empty pattern matches nothing"]),
    ("finetune.freeze=['re:']", ["finetune.freeze[0]: an empty expression matches everything", "`*`"]),
    ("finetune.freeze=[a,'re:(']", ["finetune.freeze[1]: not a regular expression: missing )"]),
    ("finetune.freeze=[@haed]", ["finetune.freeze[0]: there is no such label", "nearest: @head"]),
    ("finetune.freeze=[@tuned]", ["finetune.freeze[0]: what LoRA", "finetune.schedule freezes it later"]),
    ("finetune.freeze=[*]", ["finetune.freeze: everything is frozen", "finetune.train=[@head]"]),
    ("finetune.freeze=[@head,@body]", ["finetune.freeze: everything is frozen"]),
    ("finetune.train=[@biases]", ["finetune.train[0]: there is no such label", "nearest: @bias"]),
    ("finetune.head.lr=0", ["finetune.head.lr: out of range", "freeze them instead"]),
    ("finetune.head.lr=1 finetune.head.lr_scale=2", ["finetune.head: sets either lr or", "lr: 1, lr_scale: 2"]),
    ("finetune.schedule=[{unfreeze: [a]}]", ["finetune.schedule[0]: this is to happen at no moment"]),
    ("finetune.schedule=[{epoch: 1, step: 1, freeze: [a]}]", ["to happen at two moments", "epoch and step"]),
    ("finetune.schedule=[{epoch: 1}]", ["finetune.schedule[0]: nothing begins or stops to train here"]),
    ("finetune.schedule=[{step: 1, freeze: [a, b], unfreeze: [b]}]", ["frozen and unfrozen at once", "received: 'b'"]),
    ("finetune.schedule=[{epoch: -1, freeze: [a]}]", ["finetune.schedule[0].epoch: out of range", "at least 0"]),
    ("finetune.schedule=[{step: 1.5, freeze: [a]}]", ["finetune.schedule[0].step: wrong type"]),
    ("finetune.schedule=[{epok: 1, epoch: 1, freeze: [a]}]", ["finetune.schedule[0].epok: unknown key"]),
    ("finetune.schedule=[{epoch: 1, freeze: [@nrom]}]", ["finetune.schedule[0].freeze[0]: there is no such label"]),
    ("finetune.schedule=[{epoch: 20, freeze: [a]}]", ["after the last epoch", "at most 19", "trainer.epochs=21"]),
    ("trainer.steps=50 finetune.schedule=[{step: 50, freeze: [a]}]", ["after the last step", "trainer.steps=51"]),
    ("finetune=gradual finetune.gradual.share=0", ["finetune.gradual.share: out of range", "above 0, at most 1"]),
    ("finetune.gradual.every_steps=1", ["finetune.gradual: nothing is frozen that could be unfrozen"]),
    (
        "finetune.freeze=[@body] finetune.gradual.every_epochs=1 finetune.gradual.every_steps=2",
        ["finetune.gradual: the distance is given twice", "finetune.gradual.every_steps=null"],
    ),
    ("finetune=gradual finetune.gradual.first=2", ["finetune.gradual.first: share spreads the unfreezings"]),
    ("finetune.freeze=[a] finetune.gradual.every_epochs=20", ["finetune.gradual.every_epochs: this comes after the"]),
    ("finetune.freeze=[a] finetune.gradual.every_epochs=1 finetune.gradual.first=20", ["first: this comes after the"]),
    ("finetune.rules=[{match: a}]", ["finetune.rules[0]: the rule sets nothing", "lr_scale"]),
    ("finetune.rules=[{lr: 1}]", ["finetune.rules[0].match: missing"]),
    ("finetune.rules=[{match: [], lr: 1}]", ["finetune.rules[0].match: a rule for nothing"]),
    ("finetune.rules=[{match: [3], lr: 1}]", ["finetune.rules[0].match: wrong type", "text or a list"]),
    ("finetune.rules=[{match: @had, lr: 1}]", ["finetune.rules[0].match: there is no such label", "nearest: @head"]),
    ("finetune.rules=[{match: [a, 're:['], lr: 1}]", ["finetune.rules[0].match[1]: not a regular expression"]),
    ("finetune.rules=[{match: a, lr: 0}]", ["finetune.rules[0].lr: out of range", "add allow_zero: true to the rule"]),
    ("finetune.rules=[{match: a, lr: -1, allow_zero: true}]", ["finetune.rules[0].lr: out of range"]),
    ("finetune.rules=[{match: a, lr: false, allow_zero: true}]", ["finetune.rules[0].lr: wrong type"]),
    ("finetune.rules=[{match: a, lr: 1, lr_scale: 1}]", ["finetune.rules[0]: sets either lr or lr_scale"]),
    ("finetune.rules=[{match: a, warmup_steps: -1}]", ["finetune.rules[0].warmup_steps: out of range"]),
    ("optim.rules=[{match: a, lr: 1, lr_scale: 1}]", ["optim.rules[0]: sets either lr or lr_scale"]),
    ("optim.rules=[{match: @head, lr: 1}]", ["optim.rules[0].match: names only here; labels such"]),
    ("optim.rules=[{match: 're:(', lr: 1}]", ["optim.rules[0].match: not a regular expression"]),
    ("optim.rules=[{match: [], lr: 1}]", ["optim.rules[0].match: a rule for nothing"]),
    ("finetune.slices=[0,1]", ["finetune.slices[0]: out of range", "freeze them instead"]),
    ("finetune.slices=[1,-1]", ["finetune.slices[1]: out of range"]),
    ("finetune.layer_decay=0.5 finetune.slices=[1]", ["layer_decay: the rates of the layers", "finetune.slices=[]"]),
    ("finetune.layer_decay=0.5 optim.layer_decay=0.5", ["set twice", "finetune.layer_decay and optim.layer_decay"]),
    ("finetune.slices=[1] optim.layer_decay=0.5", ["finetune.slices: the rates of the layers are set twice"]),
    ("finetune.lora.match=[@norm]", ["finetune.lora.match[0]: @norm stands for parameters, not for layers"]),
    ("finetune.lora.match=[@lineer]", ["finetune.lora.match[0]: there is no such label", "nearest: @linear"]),
    ("finetune.lora.ranks={a: 4}", ["finetune.lora.ranks: ranks for layers, but no layer gets a LoRA"]),
    ("finetune=lora finetune.lora.ranks={a.*: 0}", ["finetune.lora.ranks.a.*: out of range", "at least 1"]),
    ("finetune=lora finetune.lora.ranks={@cnov: 2}", ["finetune.lora.ranks.@cnov: there is no such label"]),
    ("finetune=lora finetune.lora.ranks={a: b}", ["finetune.lora.ranks.a: wrong type"]),
    ("finetune.adapter.match=['re:*']", ["finetune.adapter.match[0]: not a regular expression"]),
    ("finetune.prefix.kind=prompt", ["finetune.prefix.kind: unknown key", "finetune=prefix, or finetune=lora"]),
    ("finetune.peft.r=8", ["finetune.peft._target_: missing"]),
    ("finetune.peft._target_=os.system", ["finetune.peft._target_: os.system is not among what may be built", "peft"]),
    ("finetune.peft={_target_: toy.anything, megatron_core: os}", ["finetune.peft.megatron_core: this names a module"]),
    ("finetune=lora finetune.peft._target_=toy.anything", ["finetune.peft: LoRA of our own", "finetune.lora.match=[]"]),
    ("finetune.distill.teacher=experiments", ["finetune.distill.teacher: not the folder of a run: it has no"]),
    ("finetune.distill.teacher=nowhere", ["finetune.distill.teacher: there is no such file or folder"]),
    ("finetune.weights.path=toy.pt", ["finetune.weights.path: there is no such file", "nearest: toy.py"]),
    ("finetune.weights.path=far/away.pt", ["there is no such file or folder: there is no folder far"]),
    ("finetune.weights.path=''", ["finetune.weights.path: an empty path", "or null"]),
    ("finetune.weights.adapter=conf/adapter.pt", ["finetune.weights.adapter: there is no such", "an adapter file"]),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("overrides", "said"), BAD, ids=lambda value: str(value)[:60])
def test_a_mistake_is_reported(report: Report, overrides: str, said: list[str]) -> None:
    text = report(*_split(overrides))
    for part in said:
        assert part in text
    assert "1 problem found" in text


def _split(overrides: str) -> list[str]:
    """At blanks that a new override follows."""
    parts: list[str] = []
    for word in overrides.split(" "):
        parts = [*parts, word] if "=" in word or not parts else [*parts[:-1], f"{parts[-1]} {word}"]
    return parts


GOOD = [
    "finetune.freeze=[layer1.*,'re:^stem',@norm] finetune.train=[@tuned,@head]",
    "finetune.freeze=[*] finetune.bn=train",
    "finetune.freeze=[*] finetune.lora.match=[@head]",
    "finetune.freeze=[*] finetune.schedule=[{epoch: 0, unfreeze: [a]}]",
    "finetune.freeze=[*] finetune.gradual.share=1",
    "finetune.freeze=[*] finetune.peft._target_=toy.anything",
    "finetune.schedule=[{epoch: 19, freeze: [@tuned]}, {step: 100000, unfreeze: [a]}]",
    "trainer.steps=9 finetune.schedule=[{epoch: 30, freeze: [a]}, {step: 8, freeze: [b]}]",
    "trainer.epochs=21 finetune.schedule=[{epoch: 20, freeze: [a]}]",
    "finetune.schedule=[{epoch: 1, freeze: [a]}] finetune.gradual.every_epochs=2",
    "finetune.rules=[{match: [@body, a.*], lr: 0, allow_zero: true}, {match: b, lr_scale: 2, warmup_steps: 0}]",
    "optim.rules=[{match: a, lr: 0.0, allow_zero: true, warmup_steps: 3}]",
    "finetune.slices=[0.01,0.1,1] finetune.layer_decay=null",
    "finetune=lora finetune.lora.ranks={layer1.*: 4, @conv: 2} finetune.lora.lr_ratio=16",
    "finetune.weights.mapping={encoder.*: body.*, fc.*: null}",
    "finetune.lora.rank=${data.batch_size}",
    "finetune.weights.path=conf finetune.weights.adapter=toy.py",
]


@pytest.mark.thorough
@pytest.mark.parametrize("overrides", GOOD)
def test_what_is_right_passes(composed: Compose, overrides: str) -> None:
    composed(*_split(overrides))


def test_broken_types_break_no_other_check(report: Report) -> None:
    texts = [
        "finetune.freeze={a: 1}",
        "finetune.schedule=[1,{epoch: one, freeze: 3}]",
        "finetune.gradual.every_epochs=x",
        "finetune.rules=[2]",
        "finetune.lora=3",
        "finetune.adapter.match=3",
        "finetune.weights.path=3",
        "finetune.distill.teacher=[a]",
        "finetune.slices=1",
        "trainer.epochs=many",
    ]
    text = report(*texts)
    for part in ("freeze", "schedule[0]", "schedule[1].epoch", "rules[0]", "lora", "adapter.match", "weights.path"):
        assert f"finetune.{part}: wrong type" in text
    assert "wrong type" in report("finetune=lora", "finetune.gradual=3", "finetune.head=2", "finetune.peft=1")


def test_interpolated_values_that_are_missing_are_told_once(report: Report) -> None:
    text = report("finetune.schedule=[{epoch: '${nope}', freeze: [a]}]", "finetune.weights.path='${nope}'")
    assert text.count("can't be resolved") == 2
    assert "2 problems found" in text


def test_files_are_looked_for_in_the_project_and_its_outputs(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy / "outputs" / "runs" / "today" / "one"
    run.mkdir(parents=True)
    save(compose([]).cfg, run)
    (toy / "deep").mkdir()
    monkeypatch.chdir(toy / "deep")
    monkeypatch.setenv("HOME", str(toy))
    for text in (str(run), "../outputs/runs/today/one", "outputs/runs/today/one", "runs/today/one", "~/outputs"):
        assert located(text).resolve() in (run, toy / "outputs")
        compose([f"finetune.weights.path='{text}'"])
    compose(["finetune.distill.teacher=runs/today/one"])
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


def test_defaults_are_written_out(composed: Compose) -> None:
    cfg = composed("finetune.schedule=[{epoch: 1, freeze: [a]}]", "finetune.rules=[{match: a, lr: 1}]").cfg.finetune
    assert cfg.schedule[0].unfreeze == []
    assert cfg.schedule[0].step is None
    assert (cfg.rules[0].warmup_steps, cfg.rules[0].allow_zero) == (None, False)
    assert (cfg.lora.rank, cfg.gradual.layers, cfg.peft, cfg.weights.strict) == (8, 1, None, "complete")
