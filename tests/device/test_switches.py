from __future__ import annotations

import pytest
import torch

from lightkit.common.errors import UserError
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
        memory_fraction=0.25,
        activation_checkpointing=["blocks.*", "head"],
    )
    assert on.describe(GPU) == (
        ", channels last, compiled (default), CUDA graphs, cuDNN benchmark, matmul high, at most 25% of the memory, "
        "recomputes blocks.*, head"
    )
    assert Switches(cudnn=False).describe(GPU) == ", no cuDNN"
    assert on.describe(CPU) == ", channels last, compiled (default), matmul high, recomputes blocks.*, head"


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_that_record_kernels(mode):
    assert Switches(compile=mode).graphs(GPU)
    assert not Switches(compile=mode).graphs(CPU)


def test_what_a_device_cannot_use_is_told():
    graphs, benchmark = Switches(cuda_graphs=True, cudnn_benchmark=True).idle(CPU)
    assert graphs == "device.cuda_graphs: there are CUDA graphs on NVIDIA's GPUs only; nothing is recorded on cpu"
    assert benchmark == "device.cudnn_benchmark: there is no cuDNN on cpu"
    cudnn, memory = Switches(cudnn=False, memory_fraction=0.5).idle(CPU)
    assert cudnn == "device.cudnn: there is no cuDNN on cpu anyway"
    assert memory == "device.memory_fraction: this is about the memory of GPUs, and the run is on cpu"
    assert Switches(cudnn=False, memory_fraction=0.5).idle(GPU) == []
    assert "device.compile=reduce-overhead: there are CUDA graphs" in Switches(compile="reduce-overhead").idle(CPU)[0]
    assert Switches(cuda_graphs=True, cudnn_benchmark=True).idle(GPU) == []


@pytest.mark.parametrize("name", ["compile", "matmul", "optimizer"])
def test_other_values_are_refused(name):
    with pytest.raises(UserError, match=rf"{name}: not one of the choices(.|\n)*received: 'fast'"):
        Switches(**{name: "fast"})
