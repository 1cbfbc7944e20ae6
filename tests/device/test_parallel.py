"""Several GPUs in one process: wrapping, unwrapping, which of them is the main one, and where the loss is computed."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from lightkit.device.parallel import DataParallel, LossElsewhere, MultiGpu, Parallel, make_parallel
from tests.refused import refused

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


def test_the_plain_case_leaves_the_model_alone():
    model, plain = nn.Linear(2, 1), make_parallel("none", CPU)
    assert type(plain) is Parallel
    assert plain.wrap(model) is plain.unwrap(model) is model
    assert (plain.devices, plain.describe()) == ((CPU,), "")
    inner = nn.Sequential()
    inner.add_module("module", nn.Linear(2, 1))
    assert plain.unwrap(inner) is inner, "a part of its own of that name stays"
    assert plain.unwrap(copy.deepcopy(nn.DataParallel(inner))).module.in_features == 2
    refused(lambda: make_parallel("ddp2", CPU), "parallel: no such way … choices:  none, dp")


def test_data_parallel_wraps_and_unwraps_also_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)  # a CPU run takes no GPU that is there
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    parallel = make_parallel("dp", CPU)
    wrapped = parallel.wrap(model)
    assert isinstance(parallel, DataParallel)
    assert isinstance(wrapped, nn.DataParallel)
    assert (parallel.devices, wrapped.device_ids) == ((CPU,), [])
    assert all(name.startswith("module.") for name, _ in wrapped.named_parameters())
    assert parallel.unwrap(wrapped) is model
    x = torch.randn(5, 2)
    assert torch.equal(wrapped.eval()(x), model(x))
    assert parallel.describe() == ", DataParallel over 1"
    assert DataParallel(CPU, output=1).output == CPU


def test_the_main_gpu_comes_first_and_outputs_are_joined_where_that_is_asked_for(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(MultiGpu, "__init__", lambda self, model, **options: made.append(options))
    main = DataParallel(SECOND, dim=1)
    assert [device.index for device in main.devices] == [1, 0, 2]
    assert main.describe() == ", DataParallel over 3, main cuda:1 in dimension 1"
    main.wrap(nn.Linear(2, 1))
    assert made[0]["dim"] == 1
    assert made[0]["output_device"] == made[0]["device_ids"][0] == SECOND
    other = DataParallel(FIRST, dim=0, output=1)
    assert other.describe() == ", DataParallel over 3, main cuda:0, outputs on cuda:1"
    other.wrap(nn.Linear(2, 1))
    assert made[1]["output_device"] == SECOND
    assert isinstance(other.place_loss(nn.functional.mse_loss), LossElsewhere)
    for same in (DataParallel(FIRST, output=0), DataParallel(FIRST, output=None)):
        assert same.place_loss(nn.functional.mse_loss) is nn.functional.mse_loss
    refused(lambda: DataParallel(FIRST, output=3), "dp_output: there is no GPU of that number … choices:  0, 1, 2")


def test_a_loss_on_another_device_than_the_main_one():
    seen = []

    class Loss(nn.Module):
        compares_samples = True

        def __init__(self):
            super().__init__()
            self.weight = nn.Buffer(torch.ones(3))

        def forward(self, output, target):
            seen.extend([output.device.type, target["y"].device.type, self.weight.device.type])
            return torch.tensor(2.0)

    loss = LossElsewhere(Loss(), torch.device("meta"), CPU)
    assert loss(torch.ones(2), {"y": torch.ones(2)}) == 2.0
    assert seen == ["meta"] * 3
    assert loss.compares_samples
    assert not hasattr(loss, "nothing")


@pytest.mark.thorough
def test_several_wrappers_come_off_together():
    model = nn.Linear(2, 1)
    assert Parallel(CPU).unwrap(nn.DataParallel(torch.compile(nn.DataParallel(model)))) is model


def test_threads_compute_in_the_format_of_autocast(monkeypatch):
    seen = []

    def in_threads(self, modules, inputs, kwargs):
        threads = [threading.Thread(target=module, args=values) for module, values in zip(modules, inputs)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

    def replica(_):
        seen.append(torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None)

    monkeypatch.setattr(nn.DataParallel, "parallel_apply", in_threads)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    several = MultiGpu(nn.Linear(2, 1))
    several.parallel_apply([replica] * 2, [(1,)] * 2, [{}] * 2)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        several.parallel_apply([replica] * 2, [(1,)] * 2, [{}] * 2)
    assert seen == [None] * 2 + [torch.bfloat16] * 2
