"""Steps at chosen sizes: every kind of run can take them, and what they need is told line by line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch

import lightkit.device.switches as compiling
import lightkit.runner.bench as bench
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.diagnostics.memory import Memory, Usage
from lightkit.runner.bench import Bench, Child, serve
from lightkit.trainer.tasks import StepOutput, Supervised

QUICK = ["data=wine", "model.hidden=[8]", "device=cpu", "metrics.figures=[]"]
GRADUAL = ["finetune.freeze=['*']", "finetune.train=[@head]", "finetune.gradual.every_epochs=1", "trainer.epochs=5"]
KINDS = {
    "plain": [],
    "batch norm": ["data=shapes", "data.dataset.train=60", "model=cnn", "model.channels=[4]", "~model.hidden"],
    "text": ["data=text", "data.dataset.max_chars=20000", "data.dataset.context_length=8", "~model.hidden",
             "model=transformer_lm", "model.dim=16", "model.heads=2", "model.depth=1"],
    "mixup": ["data.mixup.alpha=0.4"],
    "workers": ["data.num_workers=2"],
    "average": ["trainer.ema.decay=0.9"],
    "rollback": ["trainer.nonfinite.action=rollback"],
    "loss scale": ["device.precision=fp16"],
    "drop last": ["data.drop_last=true"],
    "gradual": GRADUAL,
    "compiled": ["device.compile=default"],
    "dp": ["device.parallel=dp"],
    "no validation": ["data.split.val=0", "metrics.monitor=train/loss", "metrics.mode=min"],
    "no test": ["data.split.test=0"],
    "plateau": ["scheduler=plateau"],
}  # fmt: skip


class Hungry(Supervised):
    """Runs out of memory with more samples than it likes."""

    def __init__(self, most: int = 1000, what: str = "memory") -> None:
        self.most, self.what = most, what

    def step(self, model: Any, batch: Any, criterion: Any) -> StepOutput:
        if model.training and len(batch[0]) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.") if self.what == "memory" else KeyError("whatever")
        return super().step(model, batch, criterion)


def hungry(most: int, what: str = "memory") -> list[str]:
    task = f"{{_target_: tests.runner.test_bench.Hungry, most: {most}, what: {what}}}"
    return [f"trainer.task={task}"]


def composed(*overrides: str) -> Any:
    own = [text for text in QUICK if f"~{text.partition('=')[0]}" not in overrides]
    return compose([*own, *(text for text in overrides if text != "~model.hidden")]).cfg


def made(*overrides: str, **options: Any) -> Bench:
    return Bench(composed(*overrides), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_can_be_measured(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    found = made(*KINDS[kind])
    for size, window in ((2, 2), (2, 1), (1000, 2)):
        needs = found.measure(size, window=window)
        assert needs["size"] == size
        assert needs["fixed"] > 0
        assert needs["peak"] > 0
    assert found.parts.optimizer.state
    found.parts.data.close()


def test_the_facts_that_the_search_needs() -> None:
    facts = made(limit=10_000).facts()
    assert facts == {"rows": 124, "free": 10_000, "limit": 9_000, "bold": False}


def test_memory_that_several_processes_share() -> None:
    alone, shared = made().free, made(sharing=4).free
    assert alone is not None
    assert shared is not None
    assert shared < 0.5 * alone


def test_each_process_computes_its_part_and_no_more_than_there_are() -> None:
    def seen(size: int, window: int, **options: Any) -> list[int]:
        found, sizes = made(**options), list[int]()
        step = found.parts.task.step

        def noted(model: Any, batch: Any, criterion: Any) -> StepOutput:
            sizes.append(len(batch[0]))
            return step(model, batch, criterion)

        found.parts.task.step = noted  # type: ignore[method-assign]
        found.measure(size, window=window)
        return sizes

    assert set(seen(16, 1, ranks=3)) == {6}
    assert max(seen(4096, 1)) == 124
    assert seen(8, 2)[-5:] == [8] * 5


def test_everything_trains_that_ever_will() -> None:
    found = made(*GRADUAL)
    assert all(parameter.requires_grad for parameter in found.parts.model.parameters())
    kept = made("finetune.freeze=[layers.linear0.*]")
    trained = {name for name, parameter in kept.parts.model.named_parameters() if parameter.requires_grad}
    assert trained
    assert "layers.linear0.weight" not in trained


class Counted(Memory):
    """The book of a device where nothing is in use."""

    def usage(self) -> Usage:
        return Usage(0, 0, 0)

    def in_use(self) -> int:
        return 0


@pytest.mark.thorough
def test_copies_that_the_run_keeps_beside_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "memory_of", Counted)

    def beside(*overrides: str, **options: Any) -> int:
        return int(made("checkpoint.asynchronous=false", *overrides, **options).measure(4, window=1)["peak"])

    assert beside() == bench._LIBRARIES
    monkeypatch.setattr(bench, "_LIBRARIES", 0)
    rollback = beside("trainer.nonfinite.action=rollback")
    assert rollback > 0
    assert beside("checkpoint.asynchronous=true") == rollback // 3
    assert beside(ranks=2) > 0
    assert beside("data.num_workers=2") > 0


def answers(asked: list[dict[str, int]], *overrides: str) -> list[dict[str, Any]]:
    written = io.StringIO()
    lines = io.StringIO("".join(json.dumps(line) + "\n" for line in asked))
    assert serve(composed(*overrides), lines, written) == 0
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_it_ends_where_memory_runs_out() -> None:
    asked = [{"size": size, "window": 1} for size in (2, 8, 64, 4)]
    facts, *found = answers(asked, *hungry(8))
    assert facts["rows"] == 124
    assert [(line["size"], line["peak"] is None) for line in found] == [(2, False), (8, False), (64, True)]
    assert found[-1]["error"].startswith("out of memory")
    assert found[-1]["exit_code"] == 4


def test_a_step_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = answers([{"size": 8, "window": 1}, {"size": 2, "window": 1}], *hungry(4, "other"))
    assert found == {"size": 8, "error": "KeyError: 'whatever'", "exit_code": 1}


def test_parts_that_cannot_be_built_are_told() -> None:
    (found,) = answers([{"size": 8, "window": 1}], "device.name=cuda:7")
    assert "no " in found["error"]
    assert found["exit_code"] == 2


def test_a_process_that_was_killed_for_its_memory_did_not_fit() -> None:
    code = (
        "import os, sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)"
    )
    with Child("{}", ("-c", code)) as child:
        assert child.answer() == {}
        assert child.ask(size=8, window=1) == {"size": 8, "peak": None}


def test_a_process_that_ends_by_itself_is_told() -> None:
    code = "import sys; sys.stderr.write('Segfault or worse'); sys.exit(3)"
    with (
        Child("{}", ("-c", code)) as child,
        pytest.raises(UserError, match=r"ended with status 3:\nSegfault or worse") as caught,
    ):
        child.answer()
    assert caught.value.exit_code == 1


def test_parts_that_cannot_be_built_end_the_search() -> None:
    code = 'print(\'{"error": "no such file", "exit_code": 2}\')'
    with Child("{}", ("-c", code)) as child, pytest.raises(UserError, match="no such file") as caught:
        child.answer()
    assert caught.value.exit_code == 2
