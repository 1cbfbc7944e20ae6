from __future__ import annotations

from lightkit.monitor.gpus import GpuFacts, GpuSample
from lightkit.monitor.tally import GpuTally, Mean


def test_a_mean_without_values() -> None:
    mean = Mean()
    mean.add(None, 5.0)
    assert mean.value is None
    mean.add(3.0, 0.0)
    assert mean.value is None


def test_energy_is_that_of_the_counter_and_without_one_the_integral_of_the_power() -> None:
    gpu = GpuFacts(0, "GPU-a", "NVIDIA H200")
    counted, integrated = GpuTally(gpu), GpuTally(gpu)
    for at, (power, energy) in enumerate([(100.0, 0.0), (300.0, 3.6e6)]):
        counted.add(GpuSample(gpu, power_w=power, energy_j=energy), seconds=10.0 * at)
        integrated.add(GpuSample(gpu, power_w=power), seconds=10.0 * at)
    assert counted.usage().energy_kwh == 1.0
    assert integrated.usage().power_w == 200.0
