"""What is set for the whole process, and by nothing else than being asked for."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.device import Engine, configure_process
from lightkit.device.process import limit_memory
from lightkit.device.switches import Switches
from tests.device.engines import configured


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.enabled = True
    torch.set_float32_matmul_precision("highest")


def test_the_gpu_of_the_run_is_that_of_whoever_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def seen(device: torch.device) -> None:
        raise Seen(str(device))

    monkeypatch.setattr("lightkit.device.process.located", lambda name, gpus: (torch.device(name), []))
    monkeypatch.setattr(torch.cuda, "set_device", seen)
    with pytest.raises(Seen, match="cuda:1"):
        configure_process("cuda:1")


def test_an_engine_sets_nothing() -> None:
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


def test_settings_of_the_process_are_those_of_the_last_call() -> None:
    configure_process("cpu", switches=Switches(cudnn_benchmark=True, matmul="medium"))
    assert torch.backends.cudnn.benchmark
    assert torch.get_float32_matmul_precision() == "medium"
    configure_process("cpu")
    assert not torch.backends.cudnn.benchmark
    assert torch.get_float32_matmul_precision() == "highest"
    configure_process("cpu", deterministic=True, switches=Switches(cudnn_benchmark=True))
    assert not torch.backends.cudnn.benchmark


def test_cudnn_is_used_unless_it_is_switched_off() -> None:
    configure_process("cpu", switches=Switches(cudnn=False))
    assert not torch.backends.cudnn.enabled
    configure_process("cpu")
    assert torch.backends.cudnn.enabled


def test_the_share_of_the_memory_of_each_gpu_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, float] = {}
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, index: limits.update({index: share})
    )
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


def test_everything_random_is_a_function_of_the_seed() -> None:
    drawn = []
    for _ in range(2):
        configure_process("cpu", seed=7)
        drawn.append((torch.rand(3).tolist(), random.random()))
    assert drawn[0] == drawn[1]
    with pytest.raises(UserError, match="seed: not a seed"):
        configure_process("cpu", seed=-1)


def test_cublas_is_told_before_anything_asks_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
    configure_process("auto", deterministic=True)
    assert set(seen) == {":4096:8"}


def test_a_gpu_that_was_chosen_and_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"gpus: there is no NVIDIA GPU here(.|\n)*device=cpu runs on the CPU"):
        configure_process("auto", gpus=[0])
    on_cpu = configured("cpu", gpus=[0])
    assert on_cpu.device.type == "cpu"
    assert on_cpu.notes.lines == ["device.gpus=[0]: not used, as the run is on cpu"]


def test_a_gpu_that_was_used_before_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in configured("cpu", deterministic=True).notes.lines[0]
    assert configured("cpu", deterministic=True).notes.lines == [], "now it is set"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert configured("cpu").notes.lines == []


def test_a_precision_there_is_none_of() -> None:
    with pytest.raises(UserError, match=r"precision: no such precision(.|\n)*bf16-true"):
        configure_process("cpu", precision="fp8")
