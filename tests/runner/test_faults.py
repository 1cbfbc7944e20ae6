"""Errors of the machine as users see them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.runner.faults import as_user_error, translate_errors


def failing_allocation() -> BaseException:
    try:
        torch.empty(2**50, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "out of memory: MemoryError"),
        (MemoryError("Unable to allocate 8 EiB"), "out of memory: Unable to allocate 8 EiB"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), "out of memory: CUDA out of memory. Tried"),
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


def test_a_batch_too_small_for_batch_norm_is_told_with_what_helps() -> None:
    with (
        pytest.raises(UserError, match=r"data\.batch_size: batch norm cannot[\s\S]*data\.drop_last=true"),
        translate_errors(),
    ):
        torch.nn.BatchNorm1d(3)(torch.zeros(1, 3))


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


@pytest.mark.parametrize(
    ("backward", "text"),
    [
        (_unused, r"model: the loss depends on no weight that trains[\s\S]*no \.detach\(\)"),
        (_used_twice, r"model: a tensor of an earlier step takes part[\s\S]*state = state\.detach\(\)"),
        (_changed_in_place, r"model: a value was changed[\s\S]*Sigmoid[\s\S]*x = x \+ y"),
    ],
)
def test_a_model_without_a_backward_pass_is_told(backward: Callable[[torch.Tensor], None], text: str) -> None:
    with pytest.raises(UserError, match=text), translate_errors():
        backward(torch.ones(3, requires_grad=True))


def test_a_number_format_that_the_processor_lacks_is_told() -> None:
    said = "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with"
    shown = as_user_error(RuntimeError(said))
    assert shown is not None
    assert "device.precision: this processor cannot" in str(shown)
    assert as_user_error(RuntimeError("something else")) is None
    assert as_user_error(ValueError("something else")) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, r"the disk is full[\s\S]*make room"),
        (errno.EDQUOT, r"the disk quota is used up[\s\S]*make room"),
        (errno.EFBIG, r"a file would be larger than the limit for files[\s\S]*ulimit -f unlimited"),
        (errno.EROFS, r"the file system is read-only[\s\S]*hydra\.run\.dir"),
        (errno.EIO, r"the disk reports an error"),
    ],
)
def test_errors_of_the_disk_end_with_status_1(number: int, text: str) -> None:
    with pytest.raises(UserError, match=f"/x/y: cannot write: {text}") as caught, translate_errors():
        raise OSError(number, "whatever", "/x/y")
    assert caught.value.exit_code == 1


def test_other_errors_of_files_are_told_in_the_folder_of_the_run_only(tmp_path: Path) -> None:
    message = r"run/log: cannot write: Is a directory[\s\S]*see to the folder"
    with pytest.raises(UserError, match=message), translate_errors(tmp_path / "run"):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(tmp_path / "run" / "log"))
    for name in (str(tmp_path / "data.csv"), None, 3):
        with pytest.raises(FileNotFoundError), translate_errors(tmp_path / "run"):
            raise FileNotFoundError(errno.ENOENT, "No such file", name)


@pytest.mark.parametrize(
    "text",
    [
        "DataLoader worker (pid 7) is killed by signal: Killed. ",
        "DataLoader worker (pid(s) 7, 8) exited unexpectedly",
        "DataLoader worker (pid 7) exited unexpectedly with exit code 7. Details are lost due to multiprocessing.",
    ],
)
def test_a_loader_process_that_died_is_told_wherever_it_is_noticed(text: str) -> None:
    with (
        pytest.raises(
            UserError, match=r"data\.dataset: a worker process of a data loader died: DataLoader worker"
        ) as caught,
        translate_errors(),
    ):
        raise RuntimeError(text)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("mat1 and mat2"), KeyError("x"), OSError("x")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert as_user_error(error) is None
    with pytest.raises(type(error)) as caught, translate_errors():
        raise error
    assert caught.value is error


def test_user_errors_and_the_end_of_the_program_pass_through() -> None:
    for error in (UserError("out of memory"), SystemExit(143), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, translate_errors():
            raise error
        assert caught.value is error
