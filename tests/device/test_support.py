from __future__ import annotations

import re

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.device.engine import check_support

CPU, GPU, APPLE = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps", 0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of some compute capability."""

    def of(*capability: int, bf16: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)

    return of


def processor(monkeypatch, *, kind: str, bf16: bool) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kind)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)


@pytest.mark.parametrize(
    ("capability", "name", "reason"),
    [
        ((7, 5), "tf32", r"device\.precision=tf32: this GPU has compute capability 7\.5, and TF32 comes with 8\.0"),
        ((7, 5), "bf16", "bfloat16 comes with 8.0 .Ampere.: emulated, slower than fp16"),
        ((7, 5), "bf16-true", "emulated"),
        ((6, 1), "fp16", "fast fp16 comes with 7.0"),
        ((9, 0), "fp32", "exact; tf32 and bf16 are several times faster on this GPU"),
    ],
)
def test_what_a_gpu_does_not_do(gpu, capability, name, reason):
    gpu(*capability)
    (line,) = check_support(name, GPU)
    assert re.search(reason, line)


@pytest.mark.parametrize(
    ("capability", "name"),
    [((9, 0), "tf32"), ((9, 0), "bf16"), ((8, 0), "bf16-true"), ((7, 0), "fp16"), ((7, 5), "fp32"), ((6, 1), "fp64")],
)
def test_what_a_gpu_does(gpu, capability, name):
    gpu(*capability)
    assert check_support(name, GPU) == []


def test_a_gpu_that_cannot_is_refused(gpu):
    gpu(3, 5, bf16=False)
    for name in ("bf16", "bf16-true"):
        with pytest.raises(UserError, match=r"precision: this GPU has no bfloat16(.|\n)*precision=fp32"):
            check_support(name, GPU)


def test_apples_gpu():
    with pytest.raises(UserError, match="Apple's GPUs have no float64"):
        check_support("fp64", APPLE)
    assert "TF32 is a format of NVIDIA's GPUs, not of mps" in check_support("tf32", APPLE)[0]
    assert check_support("fp16", APPLE) == check_support("fp32", APPLE) == []


@pytest.mark.parametrize(("kind", "bf16", "lines"), [("AVX2", False, 1), ("AVX512", True, 0), ("DEFAULT", False, 0)])
def test_processors(monkeypatch, kind, bf16, lines):
    processor(monkeypatch, kind=kind, bf16=bf16)
    for name in ("bf16", "bf16-true"):
        assert len(check_support(name, CPU)) == lines
    assert "CPUs compute fp16 slowly" in check_support("fp16", CPU)[0]
    assert "TF32 is a format of NVIDIA's GPUs: computed in fp32" in check_support("tf32", CPU)[0]
    assert check_support("fp32", CPU) == check_support("fp64", CPU) == []


def test_a_pytorch_that_does_not_tell_is_not_doubted(monkeypatch):
    processor(monkeypatch, kind="AVX2", bf16=False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert check_support("bf16", CPU) == []
