from __future__ import annotations

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.device.notes import Notes
from lightkit.device.switches import Switches

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_as_they_come_they_say_and_do_nothing():
    off = Switches()
    for device in (CPU, GPU):
        assert (off.describe(device), off.idle(device), off.graphs(device)) == ("", [], False)
    assert off.matmul_level is None


def test_what_is_on_is_told():
    on = Switches(
        channels_last=True,
        compile="default",
        cuda_graphs=True,
        cudnn_benchmark=True,
        matmul="high",
        activation_checkpointing=["blocks.*", "head"],
    )
    assert on.describe(GPU) == (
        ", channels last, compiled (default), CUDA graphs, cuDNN benchmark, matmul high, recomputes blocks.*, head"
    )
    assert on.describe(CPU) == ", channels last, compiled (default), matmul high, recomputes blocks.*, head"


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_that_record_kernels(mode):
    assert Switches(compile=mode).graphs(GPU)
    assert not Switches(compile=mode).graphs(CPU)


def test_what_a_device_cannot_use_is_told():
    graphs, benchmark = Switches(cuda_graphs=True, cudnn_benchmark=True).idle(CPU)
    assert graphs == "device.cuda_graphs: there are CUDA graphs on NVIDIA's GPUs only; nothing is recorded on cpu"
    assert benchmark == "device.cudnn_benchmark: there is no cuDNN on cpu"
    assert "device.compile=reduce-overhead: there are CUDA graphs" in Switches(compile="reduce-overhead").idle(CPU)[0]
    assert Switches(cuda_graphs=True, cudnn_benchmark=True).idle(GPU) == []


@pytest.mark.parametrize("name", ["compile", "matmul", "optimizer"])
def test_other_values_are_refused(name):
    with pytest.raises(UserError, match=rf"{name}: not one of the choices(.|\n)*received: 'fast'"):
        Switches(**{name: "fast"})


def test_notes_wait_until_somebody_takes_them():
    notes, told = Notes(), []
    for line in ("one", "two", "one"):
        notes.add(line)
    notes.hand_to(told.append)
    notes.add("three")
    notes.add("two")
    assert told == notes.lines == ["one", "two", "three"]
