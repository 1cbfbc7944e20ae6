from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.device.parallel import DataParallel, LossElsewhere, MultiGpu, Parallel, make_parallel

CPU = torch.device("cpu")


def test_the_plain_case_leaves_the_model_alone():
    model = nn.Linear(2, 1)
    plain = make_parallel("none", CPU)
    assert type(plain) is Parallel
    assert plain.wrap(model) is plain.unwrap(model) is model
    assert plain.devices == (CPU,)
    assert plain.describe() == ""


def test_data_parallel_wraps_and_unwraps_also_without_a_gpu():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    parallel = make_parallel("dp", CPU)
    wrapped = parallel.wrap(model)
    assert isinstance(parallel, DataParallel)
    assert isinstance(wrapped, nn.DataParallel)
    assert all(name.startswith("module.") for name, _ in wrapped.named_parameters())
    assert parallel.unwrap(wrapped) is model
    x = torch.randn(5, 2)
    assert torch.equal(wrapped.eval()(x), model(x))
    assert parallel.describe() == ", DataParallel over 1"


def test_a_cpu_run_takes_no_gpu_that_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert DataParallel(CPU).devices == (CPU,)
    assert DataParallel(CPU).wrap(nn.Linear(2, 1)).device_ids == []


def test_the_main_gpu_comes_first(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [device.index for device in DataParallel(torch.device("cuda", 1)).devices] == [1, 0, 2]


def test_the_main_gpu_and_the_dimension_are_told_and_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    parallel = DataParallel(torch.device("cuda", 1), dim=1)
    assert parallel.describe() == ", DataParallel over 2, main cuda:1 in dimension 1"
    made = []
    monkeypatch.setattr(MultiGpu, "__init__", lambda self, model, **options: made.append(options))
    parallel.wrap(nn.Linear(2, 1))
    assert made[0]["dim"] == 1
    assert made[0]["output_device"] == made[0]["device_ids"][0] == torch.device("cuda", 1)


def test_outputs_are_joined_on_another_gpu_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    main, other = torch.device("cuda", 0), torch.device("cuda", 1)
    parallel = DataParallel(main, dim=0, output=1)
    assert parallel.describe() == ", DataParallel over 2, main cuda:0, outputs on cuda:1"
    made = []
    monkeypatch.setattr(MultiGpu, "__init__", lambda self, model, **options: made.append(options))
    parallel.wrap(nn.Linear(2, 1))
    assert made[0]["output_device"] == other
    loss = parallel.place_loss(nn.functional.mse_loss)
    assert (loss._device, loss._main) == (other, main)
    for same in (DataParallel(main, output=0), DataParallel(main, output=None)):
        assert same.place_loss(nn.functional.mse_loss) is nn.functional.mse_loss
    with pytest.raises(UserError, match=r"dp_output: there is no GPU of that number(.|\n)*choices:  0, 1"):
        DataParallel(main, output=2)
    assert DataParallel(CPU, output=1).output == CPU


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
    wrapped = nn.DataParallel(torch.compile(nn.DataParallel(model)))
    assert Parallel(CPU).unwrap(wrapped) is model


def test_threads_compute_in_the_format_of_autocast(monkeypatch):
    seen = []

    def in_threads(self, modules, inputs, kwargs):
        def work(module, values):
            module(*values)

        threads = [threading.Thread(target=work, args=pair) for pair in zip(modules, inputs)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return seen

    def replica(_):
        seen.append(torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None)

    monkeypatch.setattr(nn.DataParallel, "parallel_apply", in_threads)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    several = MultiGpu(nn.Linear(2, 1))
    assert several.parallel_apply([replica] * 2, [(1,)] * 2, [{}] * 2) == [None] * 2
    seen.clear()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert several.parallel_apply([replica] * 2, [(1,)] * 2, [{}] * 2) == [torch.bfloat16] * 2


def test_a_model_with_a_part_named_module_keeps_it():
    model = nn.Sequential()
    model.add_module("module", nn.Linear(2, 1))
    assert Parallel(CPU).unwrap(model) is model
    assert Parallel(CPU).unwrap(copy.deepcopy(nn.DataParallel(model))).module.in_features == 2


def test_another_name_is_refused():
    with pytest.raises(UserError, match=r"parallel: no such way(.|\n)*choices:  none, dp"):
        make_parallel("ddp2", CPU)
