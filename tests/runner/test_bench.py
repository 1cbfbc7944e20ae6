"""Steps at chosen sizes: every kind of run can take them, and what they need is told line by line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch

import lightkit.device.switches as compiling
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner.bench import Bench, BenchProcess, serve
from lightkit.trainer.tasks import StepOutput, Supervised

QUICK = ["data=wine", "model.hidden=[8]", "device=cpu", "metrics.figures=[]"]
GRADUAL = ["finetune.freeze=['*']", "finetune.train=[@head]", "finetune.gradual.every_epochs=1", "trainer.epochs=5"]
KINDS = {
    "plain": [],
    "batch norm": ["data=shapes", "data.dataset.train=60", "model=cnn", "model.channels=[4]", "~model.hidden"],
    "text": ["data=text", "data.dataset.max_chars=20000", "data.dataset.context_length=8", "~model.hidden",
             "model=transformer_lm", "model.dim=16", "model.heads=2", "model.depth=1"],
    "mixup, average": ["data.mixup.alpha=0.4", "trainer.ema.decay=0.9", "data.drop_last=true"],
    "workers": ["data.num_workers=2"],
    "rollback, loss scale": ["trainer.nonfinite.action=rollback", "device.precision=fp16"],
    "gradual": GRADUAL,
    "compiled": ["device.compile=default"],
    "dp": ["device.parallel=dp"],
    "no validation, no test": ["data.split.val=0", "metrics.monitor=train/loss", "metrics.mode=min",
                               "data.split.test=0"],
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
    bench = made(*KINDS[kind])
    for size, window in ((2, 2), (2, 1), (1000, 2)):
        needs = bench.measure(size, window=window)
        assert needs["size"] == size
        assert needs["fixed"] > 0
        assert needs["peak"] > 0
    assert bench.parts.optimizer.state
    bench.parts.data.close()


def test_each_process_computes_its_part_and_no_more_than_there_are() -> None:
    def seen(size: int, window: int, **options: Any) -> list[int]:
        bench, sizes = made(**options), list[int]()
        step = bench.parts.task.step

        def noted(model: Any, batch: Any, criterion: Any) -> StepOutput:
            sizes.append(len(batch[0]))
            return step(model, batch, criterion)

        bench.parts.task.step = noted  # type: ignore[method-assign]
        bench.measure(size, window=window)
        return sizes

    assert set(seen(16, 1, ranks=3)) == {6}
    assert max(seen(4096, 1)) == 124
    assert seen(8, 2)[-5:] == [8] * 5


def test_it_knows_the_memory_and_everything_trains_that_ever_will() -> None:
    assert made(limit=10_000).facts() == {"rows": 124, "free": 10_000, "limit": 9_000, "bold": False}
    alone, shared = made().free, made(sharing=4).free
    assert alone is not None
    assert shared is not None
    assert shared < 0.5 * alone
    assert all(parameter.requires_grad for parameter in made(*GRADUAL).parts.model.parameters())
    kept = made("finetune.freeze=[layers.linear0.*]")
    trained = {name for name, parameter in kept.parts.model.named_parameters() if parameter.requires_grad}
    assert trained
    assert "layers.linear0.weight" not in trained


def answers(asked: list[dict[str, int]], *overrides: str) -> list[dict[str, Any]]:
    written = list[dict[str, Any]]()
    lines = io.StringIO("".join(json.dumps(line) + "\n" for line in asked))
    assert serve(composed(*overrides), lines, written.append) == 0
    return written


def test_it_ends_where_memory_runs_out() -> None:
    asked = [{"size": size, "window": 1} for size in (2, 8, 64, 4)]
    facts, *lines = answers(asked, *hungry(8))
    assert facts["rows"] == 124
    assert [(line["size"], line["peak"] is None) for line in lines] == [(2, False), (8, False), (64, True)]
    assert lines[-1]["error"].startswith("out of memory")
    assert lines[-1]["exit_code"] == 4


def test_a_step_that_fails_and_parts_that_cannot_be_built_are_told() -> None:
    _, failed = answers([{"size": 8, "window": 1}, {"size": 2, "window": 1}], *hungry(4, "other"))
    assert failed == {"size": 8, "error": "KeyError: 'whatever'", "exit_code": 1}
    (refused,) = answers([{"size": 8, "window": 1}], "device.name=cuda:7")
    assert "no " in refused["error"]
    assert refused["exit_code"] == 2


def test_a_process_that_was_killed_for_its_memory_did_not_fit_and_another_end_is_told() -> None:
    for code, exit_code, text in (
        (
            "import sys; sys.stderr.write('Segfault or worse'); sys.exit(3)",
            1,
            "ended with status 3:\nSegfault or worse",
        ),
        ('print(\'{"error": "no such file", "exit_code": 2}\')', 2, "no such file"),
    ):
        with BenchProcess("{}", ("-c", code)) as child, pytest.raises(UserError, match=text) as caught:
            child.answer()
        assert caught.value.exit_code == exit_code
    dies = "sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)"
    with BenchProcess("{}", ("-c", f"import os, sys; {dies}")) as child:
        assert child.answer() == {}
        assert child.ask(size=8, window=1) == {"size": 8, "peak": None}
