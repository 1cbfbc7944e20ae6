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
    reasons = {"cuda": _on_cuda, "cpu": _on_cpu}.get(device.type, _elsewhere)
    return [f"device.precision={name}: {reason}" for reason in reasons(name, device)]


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


def _on_cpu(name: str, _device: torch.device) -> Iterator[str]:
    if name == "tf32":
        yield "TF32 is a format of NVIDIA's GPUs: computed in fp32"
    if name == "fp16":
        yield "CPUs compute fp16 slowly; bf16 is the half precision that some of them are fast in"
    if name.startswith("bf16") and not _cpu_has_bf16():
        yield "this CPU has no instructions for bfloat16: slower than fp32"


def _elsewhere(name: str, device: torch.device) -> Iterator[str]:
    if name == "tf32":
        yield f"TF32 is a format of NVIDIA's GPUs, not of {device.type}: computed in fp32"


def _cpu_has_bf16() -> bool:
    """Tell whether there are fast instructions; True where this PyTorch or another kind of processor does not say."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    asked = [ask for name in names if (ask := getattr(torch.cpu, name, None)) is not None]
    is_intel = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return not (is_intel and asked) or any(ask() for ask in asked)
