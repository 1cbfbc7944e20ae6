"""What GPUs can compute at best, by the names that PyTorch tells."""

from __future__ import annotations

import pytest

from lightkit.monitor.peaks import PEAKS, peak_tflops


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16-true", 756.5),
        ("NVIDIA H200", "tf32", 494.7),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "fp32", None),
        ("NVIDIA A10", "fp16", 125),
        ("NVIDIA A10G", "fp16", None),
        ("NVIDIA L40S", "bf16", 362.1),
        ("Tesla V100-SXM2-16GB", "tf32", None),
        ("Tesla T4", "fp16", 65),
        ("AMD Instinct MI300X", "bf16", None),
    ],
)
def test_the_peak_of_a_gpu(name: str, precision: str, peak: float | None) -> None:
    assert peak_tflops(name, precision) == peak


def test_lower_precisions_are_no_slower() -> None:
    for known in PEAKS.values():
        speeds = [known[kind] for kind in ("half", "tf32", "fp32", "fp64") if kind in known]
        assert speeds == sorted(speeds, reverse=True)
