"""What is set for the whole process, and by nothing else than being asked for; and seeds."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from lightkit.device import Engine, configure_process
from lightkit.device.process import MicroSeed, limit_memory, seed_everything, set_threads, use_deterministic
from lightkit.device.switches import Switches
from tests.device.engines import configured
from tests.refused import refused

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def _as_before():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.set_num_threads(states[3])
    use_deterministic(False)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.enabled = True
    torch.set_float32_matmul_precision("highest")


def test_the_gpu_of_the_run_is_that_of_whoever_asks_for_none(monkeypatch):
    seen = []
    monkeypatch.setattr("lightkit.device.process.located", lambda name, gpus: (torch.device(name), []))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.append(str(device)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        configure_process("cuda:1")
    assert seen == ["cuda:1"]


def test_an_engine_sets_nothing():
    configure_process("cpu", threads=2, seed=3)
    drawn = torch.get_rng_state(), random.getstate()
    switches = Switches(cudnn_benchmark=True, matmul="medium")
    Engine("cpu", precision="tf32", switches=switches, deterministic=True, seed=5)
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert torch.get_num_threads() == 2
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()


def test_settings_of_the_process_are_those_of_the_last_call():
    configure_process("cpu", switches=Switches(cudnn_benchmark=True, matmul="medium"))
    assert torch.backends.cudnn.benchmark
    assert torch.get_float32_matmul_precision() == "medium"
    configure_process("cpu", switches=Switches(cudnn=False))
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled) == (False, False)
    assert torch.get_float32_matmul_precision() == "highest"
    configure_process("cpu", deterministic=True, switches=Switches(cudnn_benchmark=True))
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled) == (False, True)


def test_the_share_of_the_memory_of_each_gpu_that_computes(monkeypatch):
    limits: dict[int, float] = {}
    limit = "set_per_process_memory_fraction"
    monkeypatch.setattr(torch.cuda, limit, lambda share, index: limits.update({index: share}))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    limit_memory(None, torch.device("cuda", 1))
    limit_memory(0.5, torch.device("cpu"))
    assert limits == {}, "nobody asks a GPU for nothing"
    limit_memory(0.5, torch.device("cuda", 1))
    assert limits == {1: 0.5}
    limit_memory(0.25, torch.device("cuda", 1), several_gpus=True)
    assert limits == {0: 0.25, 1: 0.25, 2: 0.25}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    limit_memory(None, torch.device("cuda", 1))
    assert limits == {0: 0.25, 1: 1.0, 2: 0.25}, "the limit of an earlier run is taken back"


def test_cublas_is_told_before_anything_asks_for_gpus(monkeypatch):
    seen = []
    monkeypatch.delenv(CUBLAS, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(os.environ.get(CUBLAS)))
    configure_process("auto", deterministic=True)
    assert set(seen) == {":4096:8"}
    monkeypatch.setenv(CUBLAS, ":16:8")
    use_deterministic(True)
    assert os.environ[CUBLAS] == ":16:8", "a user's own stays"


def test_a_gpu_that_was_chosen_and_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", "")
    text = "gpus: there is no NVIDIA GPU here … device=cpu runs on the CPU"
    refused(lambda: configure_process("auto", gpus=[0]), text)
    on_cpu = configured("cpu", gpus=[0])
    assert on_cpu.device.type == "cpu"
    assert on_cpu.notes.lines == ["device.gpus=[0]: not used, as the run is on cpu"]


def test_a_gpu_that_was_used_before_is_told(monkeypatch):
    monkeypatch.delenv(CUBLAS, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert f"{CUBLAS}=:4096:8" in configured("cpu", deterministic=True).notes.lines[0]
    assert configured("cpu", deterministic=True).notes.lines == [], "now it is set"
    monkeypatch.delenv(CUBLAS)
    assert configured("cpu").notes.lines == []


def test_deterministic_algorithms_on_and_off(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    use_deterministic(True)
    assert torch.are_deterministic_algorithms_enabled()
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
    use_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic


def test_what_cannot_be_set_is_refused():
    for seed in (-1, 2**63):
        refused(lambda seed=seed: configure_process("cpu", seed=seed), "seed: not a seed")
    refused(lambda: configure_process("cpu", precision="fp8"), "precision: no such precision … bf16-true")
    set_threads(1)
    set_threads(None)
    assert torch.get_num_threads() == 1
    refused(lambda: set_threads(0), "threads: not a number of threads")


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**63 - 1])
def test_every_generator_is_seeded(seed):
    def draws() -> tuple:
        return random.random(), float(np.random.rand()), torch.rand(2).tolist()

    seed_everything(seed)
    first = draws()
    configure_process("cpu", seed=seed)
    assert draws() == first
    seed_everything(seed + 1 if seed < 2**63 - 1 else 0)
    assert all(left != right for left, right in zip(draws(), first))


def test_a_batch_draws_by_its_place_whatever_came_before():
    seen = {}
    for seed in (*range(4), 2):
        micro = MicroSeed(seed)
        for epoch in range(4):
            for samples_done in range(0, 160, 5):
                micro(epoch, samples_done)
                drawn = tuple(torch.rand(3).tolist())
                assert seen.setdefault((seed, epoch, samples_done), drawn) == drawn
                torch.rand(samples_done)
    assert len({*seen.values()}) == len(seen) == 4 * 4 * 32


def test_neighbouring_places_are_unrelated():
    micro, rows = MicroSeed(0), []
    for samples_done in range(400):
        micro(0, samples_done)
        rows.append(torch.rand(50))
    stacked = torch.stack(rows)
    assert abs(float(stacked.mean()) - 0.5) < 0.01
    correlation = torch.corrcoef(torch.stack([stacked[:-1].flatten(), stacked[1:].flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.03
