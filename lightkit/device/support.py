"""What a device can do with a number format, in words."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lightkit.common.errors import UserError

_AMPERE = (8, 0)


def check_support(name: str, device: torch.device) -> list[str]:
    """Return reasons why a precision does not do on this device what it is there for; empty where it does.

    Raises:
        UserError: The device cannot compute in it at all.
    """
    if name == "fp64" and device.type == "mps":
        raise UserError(
            "Apple's GPUs have no float64", argument="precision", received=name, fix="device.precision=fp32"
        )
    if name.startswith("bf16") and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UserError("this GPU has no bfloat16", argument="precision", received=name, fix="device.precision=fp32")
    if device.type == "cuda":
        reasons = [*_on_cuda(name, device)]
    elif device.type == "cpu":
        reasons = [*_on_cpu(name)]
    elif name == "tf32":
        reasons = [f"TF32 is a format of NVIDIA's GPUs, not of {device.type}: computed in fp32"]
    else:
        reasons = []
    return [f"device.precision={name}: {reason}" for reason in reasons]


def _on_cuda(name: str, device: torch.device) -> Iterator[str]:
    capability = torch.cuda.get_device_capability(device)
    known = "this GPU has compute capability {}.{}".format(*capability)
    if name == "tf32" and capability < _AMPERE:
        yield f"{known}, and TF32 comes with 8.0 (Ampere): computed in fp32"
    if name.startswith("bf16") and capability < _AMPERE:
        yield f"{known}, and bfloat16 comes with 8.0 (Ampere): emulated, slower than fp16 or even fp32"
    if name == "fp16" and capability < (7, 0):
        yield f"{known}, and fast fp16 comes with 7.0 (Volta): little or nothing is gained over fp32"
    if name == "fp32" and capability >= _AMPERE:
        yield "exact; tf32 and bf16 are several times faster on this GPU"


def _on_cpu(name: str) -> Iterator[str]:
    if name == "tf32":
        yield "TF32 is a format of NVIDIA's GPUs: computed in fp32"
    if name == "fp16":
        yield "CPUs compute fp16 slowly; bf16 is the half precision that some of them are fast in"
    # This PyTorch, or another kind of processor, may not say whether there are fast instructions.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    asked = [ask for known in names if (ask := getattr(torch.cpu, known, None)) is not None]
    is_intel = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    if name.startswith("bf16") and is_intel and asked and not any(ask() for ask in asked):
        yield "this CPU has no instructions for bfloat16: slower than fp32"
