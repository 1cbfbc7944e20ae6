"""Rules between keys see defaults and checked values only; what they refuse is in test_check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.config import compose
from lightkit.config.check import check_values
from lightkit.config.devices import DEVICE_RULES
from lightkit.config.finetuning import FINETUNE_RULES
from lightkit.config.origins import Sources
from lightkit.config.relations import RULES
from lightkit.config.report import Report as Problems
from lightkit.config.tree import plain_tree

Report = Callable[..., str]


@pytest.mark.parametrize("overrides", [[], ["device=fsdp", "finetune=[lora,gradual]", "data.split.by=fold"]])
def test_no_rule_reads_what_is_not_there(project: Path, overrides: list[str]) -> None:
    problems = Problems(Sources())
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
