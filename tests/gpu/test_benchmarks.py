"""The benchmarks for a GPU run on one. How fast anybody was is not asked here."""

from __future__ import annotations

from types import ModuleType

import pytest

from benchmarks import gpu_graphs, gpu_throughput

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("module", [gpu_throughput, gpu_graphs])
def test_a_benchmark_for_a_gpu_gives_its_figures(
    module: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, root
) -> None:
    monkeypatch.chdir(root)
    module.main(["--small", "--rounds", "1", "--steps", "10", "--warm", "10"])
    found = [line for line in capsys.readouterr().out.splitlines() if ", throughput: " in line]
    assert len(found) == len(module.CASES) * (1 if module is gpu_throughput else 2)
