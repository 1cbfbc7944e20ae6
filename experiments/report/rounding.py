"""How far a table may be off on another processor: the same runs with other instructions, which round otherwise.

PyTorch and its libraries choose instructions by the processor (AVX-512, AVX2, or neither). Each adds numbers in another
order, so the last bits of a sum differ, and training doubles such a difference again and again. Here the seeds of a
page run once more with each older set of instructions, in processes of their own, as the choice is made at a start.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.report.measure import finished, folder_of
from experiments.report.rows import PAGES

INSTRUCTIONS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "none": {"ATEN_CPU_CAPABILITY": "default", "DNNL_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
"""What older instructions are called here, and the environment that chooses them."""


def again(root: Path, outputs: Path, name: str) -> None:
    """Run a page with each older set of instructions; what is there already is not run again.

    Args:
        root: The project.
        outputs: Folder of all measured runs; these are in a folder beside it for each set of instructions.
        name: The page.

    Raises:
        subprocess.CalledProcessError: A run failed; what it printed is above.
    """
    code = "import sys; from experiments.report import rounding; rounding.measure_all(*sys.argv[1:])"
    for kind, chosen in INSTRUCTIONS.items():
        command = [sys.executable, "-c", code, str(beside(outputs, kind)), name]
        subprocess.run(command, check=True, cwd=root, env={**os.environ, **chosen})


def beside(outputs: Path, kind: str) -> Path:
    """Where runs with older instructions are."""
    return outputs.with_name(f"{outputs.name}-{kind}")


def measure_all(outputs: str, name: str) -> None:
    """Run what is missing of a page; called in a process with other instructions."""
    from experiments.report.measure import measure

    for variant in PAGES[name].variants:
        for line in measure(Path(outputs), name, variant):
            sys.stdout.write(f"{line}\n")


def spread(outputs: Path, name: str, found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """How far runs and means with other instructions are from those in the results.

    Args:
        outputs: Folder of all measured runs.
        name: The page.
        found: Its results.

    Returns:
        For each metric the largest difference of a run, and of a mean over all seeds of a variant.
    """
    gaps: dict[str, dict[str, list[float]]] = {}
    for metric in PAGES[name].metrics:
        for run, mean in _gaps(outputs, name, found, metric.key):
            kept = gaps.setdefault(metric.key, {"run": [], "mean": []})
            kept["run"].append(run)
            kept["mean"].append(mean)
    return {key: {kind: round(max(values), 9) for kind, values in kept.items()} for key, kept in gaps.items()}


def _gaps(outputs: Path, name: str, found: Mapping[str, Any], key: str) -> Iterator[tuple[float, float]]:
    """For each variant and set of instructions: the largest difference of a run, and that of the mean."""
    for variant, entry in found["variants"].items():
        known = dict(zip(entry["seeds"], entry["values"].get(key, [])))
        for kind in INSTRUCTIONS:
            runs = {seed: finished(folder_of(beside(outputs, kind), name, variant, seed)) for seed in known}
            gaps = [run["test"][key] - known[seed] for seed, run in runs.items() if run is not None]
            if gaps and len(gaps) == len(known):
                yield max(map(abs, gaps)), abs(statistics.fmean(gaps))
