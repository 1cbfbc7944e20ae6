"""Errors of the machine as users see them."""

from __future__ import annotations

import errno
import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lightkit.diagnostics.memory as memory
import lightkit.runner.faults as oom
import lightkit.runner.run as run
import lightkit.runner.session as session
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.diagnostics.memory import Memory
from lightkit.runner import Runner
from lightkit.runner.faults import as_user_error, translate_errors
from lightkit.trainer.tasks import StepOutput, Supervised


def failing_allocation() -> BaseException:
    try:
        torch.empty(2**50, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError("Unable to allocate 8 EiB"), "out of memory: Unable to allocate 8 EiB"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), "out of memory: CUDA error: out of memory"),
        (MemoryError("Caught MemoryError in DataLoader worker process 0.\nTraceback:\n  x\nMemoryError: 8 EiB\n"),
         "out of memory: MemoryError: 8 EiB (in a loader process)"),
        (failing_allocation(), "can't allocate memory: you tried to allocate 1125899906842624 bytes"),
    ],
)  # fmt: skip
def test_out_of_memory_ends_with_status_4_and_says_what_to_change(error: BaseException, reason: str) -> None:
    shown = as_user_error(error)
    assert shown is not None
    assert reason in str(shown)
    assert "a smaller data.batch_size with trainer.accumulate" in str(shown)
    assert shown.exit_code == 4


def _unused(weight: torch.Tensor) -> None:
    weight.detach().sum().backward()


def _used_twice(weight: torch.Tensor) -> None:
    loss = (weight**2).sum()
    loss.backward()
    loss.backward()


def _changed_in_place(weight: torch.Tensor) -> None:
    output = weight.sigmoid()
    output += 1
    output.sum().backward()


def _raises(error: BaseException) -> Callable[[torch.Tensor], None]:
    def call(_weight: torch.Tensor) -> None:
        raise error

    return call


NO_PRIMITIVE = "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with"
DEAD = "DataLoader worker (pid(s) 7, 8) exited unexpectedly"
DIED = r"data\.dataset: a worker process of a data loader died: DataLoader worker"


@pytest.mark.parametrize(
    ("call", "text", "code"),
    [
        (_unused, r"model: the loss depends on no weight that trains[\s\S]*no \.detach\(\)", 2),
        (_used_twice, r"model: a tensor of an earlier step takes part[\s\S]*state = state\.detach\(\)", 2),
        (_changed_in_place, r"model: a value was changed[\s\S]*Sigmoid[\s\S]*x = x \+ y", 2),
        (lambda _: torch.nn.BatchNorm1d(3)(torch.zeros(1, 3)),
         r"data\.batch_size: batch norm cannot[\s\S]*data\.drop_last=true", 2),
        (_raises(RuntimeError(NO_PRIMITIVE)), r"device\.precision: this processor cannot", 2),
        (lambda _: torch.nn.Embedding(3, 1)(torch.tensor([3])),
         r"data\.dataset: a token is beyond the vocab[\s\S]*vocab_size", 2),
        (_raises(RuntimeError(DEAD)), DIED, 1),
        (_raises(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")), DIED, 1),
        (_raises(OSError(errno.ENOSPC, "x", "/x/y")), r"/x/y: cannot write: the disk is full[\s\S]*make room", 1),
        (_raises(OSError(errno.EDQUOT, "x", "/x/y")), r"the disk quota is used up[\s\S]*make room", 1),
        (_raises(OSError(errno.EFBIG, "x", "/x/y")), r"larger than the limit for files[\s\S]*ulimit -f unlimited", 1),
        (_raises(OSError(errno.EROFS, "x", "/x/y")), r"the file system is read-only[\s\S]*hydra\.run\.dir", 1),
        (_raises(OSError(errno.EIO, "x", "/x/y")), r"the disk reports an error", 1),
    ],
)  # fmt: skip
def test_what_fails_in_a_library_is_told_with_what_helps(
    call: Callable[[torch.Tensor], None], text: str, code: int
) -> None:
    with pytest.raises(UserError, match=text) as caught, translate_errors():
        call(torch.ones(3, requires_grad=True))
    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    "error", [ValueError("x"), RuntimeError("mat1 and mat2"), OSError("x"), UserError("out of memory"), SystemExit(143)]
)
def test_other_errors_stay_what_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, translate_errors():
        raise error
    assert caught.value is error


def test_other_errors_of_files_are_told_in_the_folder_of_the_run_only(tmp_path: Path) -> None:
    message = r"run/log: cannot write: Is a directory[\s\S]*see to the folder"
    with pytest.raises(UserError, match=message), translate_errors(tmp_path / "run"):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(tmp_path / "run" / "log"))
    for name in (str(tmp_path / "data.csv"), None, 3):
        with pytest.raises(FileNotFoundError), translate_errors(tmp_path / "run"):
            raise FileNotFoundError(errno.ENOENT, "No such file", name)


QUICK = ["data=digits", "data.batch_size=32", "trainer.epochs=2", "logger=quiet", "device=cpu", "metrics.figures=[]"]
SMALL = ["model=transformer", "model.dim=16", "model.depth=2"]
TASK = "trainer.task._target_=tests.runner.test_faults.Full"


class Fails(torch.autograd.Function):
    """Runs out of memory in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has")


class Full(Supervised):
    """Runs out of memory somewhere on real data; steps without values pass, unless it looks at them.

    Args:
        at: Batch of training at which it does, or of the evaluation.
        where: `forward`, `backward` or `evaluation`.
    """

    def __init__(self, at: int = 3, where: str = "forward") -> None:
        self.at, self.where, self.seen = at, where, 0

    def step(self, model: Any, batch: Any, criterion: Any) -> StepOutput:
        real = type(batch[0]) is Tensor and len(batch[0]) > 2
        self.seen += real and model.training != (self.where == "evaluation")
        output = super().step(model, batch, criterion)
        if not real or self.seen != self.at or model.training == (self.where == "evaluation"):
            return output
        if self.where == "backward":
            return output._replace(loss=Fails.apply(output.loss))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has")


def failed(folder: Path, *overrides: str, **options: Any) -> str:
    """The report of a run that runs out of memory."""
    cfg = compose([*QUICK, *(overrides or SMALL), TASK]).cfg
    with pytest.raises(UserError, match="out of memory") as caught:
        Runner(cfg, folder).run(**options)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_the_report_of_a_training_step(tmp_path: Path) -> None:
    report = failed(tmp_path / "run", *SMALL, "trainer.ema.decay=0.9")
    head, *rows = report.splitlines()
    assert head == (
        "out of memory in training step 3 (forward pass, 32 samples): CUDA out of memory. Tried to allocate 20.00 GiB."
    )
    assert [row.split(":")[0].strip() for row in rows[:4]] == ["memory", "made of", "of these", "fix"]
    assert "GiB" in rows[0]
    for part in ("weights", "gradients", "state of the optimizer", "average"):
        assert f"{part} " in rows[1]
    assert "activations of 32 samples about" in rows[2]
    assert "blocks.*" in rows[2]
    fixes = [row.replace("fix:", "").strip() for row in rows[3:]]
    assert fixes[:4] == [
        "data.batch_size=16 trainer.accumulate=2",
        "trainer.find_batch_size=auto, which finds the largest for a new run",
        "device.precision=bf16",
        'device.activation_checkpointing=["blocks.*"]',
    ]
    assert "resume.override=[trainer.accumulate]" in fixes[4]
    assert len(rows) <= 8
    assert json.loads((tmp_path / "run/result.json").read_text())["reason"] == report
    assert "blocks.*" in (tmp_path / "run/run.log").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "head"),
    [
        (["trainer.task.where=backward", "trainer.accumulate=2"],
         "out of memory in training step 2 (backward pass, 32 samples x 2 accumulated)"),
        (["trainer.task.where=evaluation", "trainer.task.at=2"], "out of memory in the validation after step 40"),
        (["device.activation_checkpointing=['blocks.*']"], "out of memory in training step 3 (forward pass"),
    ],
)  # fmt: skip
def test_where_it_happened(tmp_path: Path, options: list[str], head: str) -> None:
    report = failed(tmp_path / "run", *SMALL, *options)
    assert report.startswith(head), report
    assert "of these:" in report
    evaluating = "trainer.task.where=evaluation" in options
    assert ("data.eval_batch_size=16" in report) == evaluating
    assert ("data.batch_size=16" in report) != evaluating
    recomputes = "device.activation_checkpointing=['blocks.*']" in options
    assert ('device.activation_checkpointing=["blocks.*"]' in report) != (evaluating or recomputes)


def test_memory_that_runs_out_while_the_run_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(run, "build_learner", full)
    report = failed(tmp_path / "run")
    assert report.startswith("out of memory while the run was built: MemoryError")
    assert "data.batch_size" not in report
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_an_evaluation(tmp_path: Path) -> None:
    Runner(compose([*QUICK, *SMALL, "trainer.epochs=1"]).cfg, tmp_path / "run").run()
    cfg = load_run(tmp_path / "run", [TASK, "trainer.task.where=evaluation", "trainer.task.at=1"]).cfg
    for call in (Runner(cfg, tmp_path / "run").evaluate, Runner(cfg, tmp_path / "run").predict):
        with pytest.raises(UserError, match=r"out of memory in an evaluation[\s\S]*data\.eval_batch_size=16") as caught:
            call()
        assert caught.value.exit_code == 4
        assert "of these: outputs about" in str(caught.value)


def test_a_report_that_cannot_be_made_says_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    for name in ("activations", "measured", "state_bytes", "memory_of", "small_batch"):
        monkeypatch.setattr(oom, name, broken)
    monkeypatch.setattr(Memory, "usage", broken)
    report = failed(tmp_path / "run")
    assert report.startswith("out of memory in training step 3")
    assert "of these:" not in report
    assert "data.batch_size=16 trainer.accumulate=2" in report


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(
    "more",
    [["trainer.epochs=1"], [TASK], [TASK, "trainer.task.where=backward"], [TASK, "trainer.task.where=evaluation"],
     ["++trainer.callbacks.kill={_target_: tests.runner.test_run.KillAt, step: 2}"]],
    ids=["ends", "forward", "backward", "evaluation", "another error"],
)  # fmt: skip
def test_a_run_that_ends_leaves_nothing_in_the_cache_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: list[str]
) -> None:
    build, models, alive, kept = run.build_learner, list[weakref.ref[Any]](), list[bool](), list[BaseException]()

    def built(*args: Any, **options: Any) -> Any:
        parts = build(*args, **options)
        models.append(weakref.ref(parts.model))
        return parts

    class Gpu(Memory):
        def release(self) -> None:
            alive.append(models[-1]() is not None)

    monkeypatch.setattr(run, "build_learner", built)
    monkeypatch.setattr(session, "release", lambda: memory.release(Gpu(), collect=gc.collect))
    try:
        Runner(compose([*QUICK, *SMALL, *more]).cfg, tmp_path / "run").run()
    except (UserError, RuntimeError) as error:
        # A caller that goes on with other runs may keep one about memory; in others a debugger looks at the frames.
        kept.append(error if isinstance(error, UserError) else RuntimeError())
    gc.collect()
    assert len(alive) == 1
    assert models[0]() is None
    assert kept or alive == [False]
