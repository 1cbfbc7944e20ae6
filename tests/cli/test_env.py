from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import env
from lightkit.device import about
from tests.conftest import Cli
from tests.monitor.fakes import Card, Program, fake_nvml, install


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever this one has."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    Program(tmp_path / "bin", monkeypatch).says("echo 'No devices were found'; exit 6")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch, None)


def test_the_report_says_what_a_bug_report_needs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    done = cli("env")
    told = {line[:12].strip(): line[12:] for line in done.out.splitlines() if line[:1].strip()}
    assert (done.code, done.err) == (0, "")
    assert {"lightkit", "python", "platform", "cpu", "memory", "torch", "device", "gpus", "packages", "project"} <= set(
        told
    )
    assert told["gpus"] == "none (nvidia-ml-py is not installed)"
    assert "CUDA_VISIBLE_DEVICES=0,1" in told["variables"]
    assert "hush" not in done.out
    assert max(map(len, done.out.splitlines())) <= 160


def test_json(cli: Cli, project: Path) -> None:
    import torch

    found = json.loads(cli("env", "--json").out)
    assert found["torch"]["version"] == str(torch.__version__)
    assert found["gpus"]["found"] == []
    assert found["topology"] is None
    assert found["project"] == str(project)
    assert found["git"] is None
    assert "torch" not in found["packages"]
    assert found["cpu"]["usable"] >= 1


def test_devices_and_how_they_are_connected(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml([Card(), Card(uuid="GPU-bbbb", total=ValueError("odd"))]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    device = {"device": "cuda:0", "name": "NVIDIA H200", "uuid": "GPU-bbbb", "memory_gib": 139.8, "capability": "9.0"}
    seen = {**about.torch_facts(), "default_device": "cuda:0", "devices": [device], "no_cuda": None}
    monkeypatch.setattr(about, "torch_facts", lambda: seen)
    Program(tmp_path / "bin", monkeypatch).says(
        r'[ "$1" = topo ] && printf "\033[4m\tGPU0\tGPU1\033[0m\nGPU0\t X \tNV18\n"'
    )
    out = cli("env").out
    assert "driver      570.86.10 (by NVML)\n" in out
    assert "gpus        GPU 0: NVIDIA H200, 140.0 GiB, GPU-aaaa = not visible\n" in out
    assert "            GPU 1: NVIDIA H200, GPU-bbbb = cuda:0\n" in out
    assert out.endswith("\ntopology (nvidia-smi topo -m)\n  \tGPU0\tGPU1\n  GPU0\t X \tNV18\n")


def test_gpus_that_pytorch_does_not_see_have_no_name_of_pytorch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    install(monkeypatch, fake_nvml([Card()]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    out = cli("env").out
    assert "device      auto takes cpu\n" in out
    assert "gpus        GPU 0: NVIDIA H200, 140.0 GiB, GPU-aaaa = not visible\n" in out
    assert "            PyTorch sees none of them: this PyTorch was built without CUDA\n" in out
    assert json.loads(cli("env", "--json").out)["gpus"]["found"][0]["torch"] is None


def test_a_run_on_the_cpu_says_that_the_driver_shows_gpus(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    install(monkeypatch, fake_nvml([Card()]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    short = ["train", "data=wine", "trainer.steps=1", "logger.tensorboard.enabled=false", "metrics.figures=[]"]
    told = cli(*short, "device=auto")
    said = "the driver shows 1 NVIDIA GPU (NVIDIA H200), but PyTorch sees none: this PyTorch was built without CUDA"
    assert told.code == 0
    assert f"device.name=auto takes the CPU: {said}" in told.out + told.err
    assert said not in (silent := cli(*short, "device=cpu")).out + silent.err
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "0")  # so that what the choice sets is put back
        monkeypatch.delenv(name)
    refused = cli(*short, "device.gpus=auto")
    assert refused.code == 2
    assert f"error: device.gpus: {said}" in refused.err


def test_a_program_that_hangs_tells_no_topology(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml([Card()]))
    Program(tmp_path / "bin", monkeypatch).says("exec sleep 600")
    monkeypatch.setattr(env, "_SECONDS", 0.2)
    assert "topology" not in cli("env").out


def test_a_broken_pytorch_is_part_of_the_report(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "torch_facts", lambda: {"error": "OSError: libcudart.so.12: cannot open"})
    assert "torch       cannot be imported: OSError: libcudart.so.12: cannot open\n" in cli("env").out


def test_gpus_as_pytorch_sees_them(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    device = {"device": "cuda:0", "name": "NVIDIA H200", "uuid": "GPU-a", "memory_gib": 139.8, "capability": "9.0"}
    facts: dict[str, Any] = {
        "version": "2.15.0", "cuda": "13.2", "hip": None, "cudnn": "9.26.0", "nccl": "2.28.3", "threads": 1,
        "cpu_capability": "AVX512", "default_device": "cuda:0", "devices": [device],
    }  # fmt: skip
    monkeypatch.setattr(about, "torch_facts", lambda: facts)
    out = cli("env").out
    assert "\ntorch       2.15.0 (CUDA 13.2, cuDNN 9.26.0, NCCL 2.28.3), 1 thread, AVX512\n" in out
    assert "\ndevice      auto takes cuda:0\n            cuda:0: NVIDIA H200, 139.8 GiB, capability 9.0, GPU-a\n" in out
    facts |= {"cuda": None, "cudnn": None, "nccl": None, "threads": 2, "devices": []}
    assert "\ntorch       2.15.0 (without CUDA), 2 threads, AVX512\n" in cli("env").out


def test_the_name_of_the_processor(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: other\n")
    assert env.cpu_model(file) == "AMD EPYC 9654"
    assert env.cpu_model(tmp_path / "missing") == (env.platform.processor() or env.platform.machine())
