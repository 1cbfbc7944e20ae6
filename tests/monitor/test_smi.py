from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkit.monitor.gpus import GpuSample, Unavailable
from lightkit.monitor.smi import Smi
from lightkit.monitor.sources import open_source
from tests.device.fakes import Card, Program, fake_nvml, install

CARD = {
    "index": "0",
    "uuid": "GPU-aaaa",
    "name": "NVIDIA A100-SXM4-40GB",
    "driver_version": "535.104.05",
    "pci.bus_id": "00000000:07:00.0",
    "enforced.power.limit": "400.00",
    "memory.total": "40960",
    "mig.mode.current": "Disabled",
    "temperature.gpu": "31",
    "power.draw": "54.21",
    "memory.used": "1024",
    "utilization.gpu": "7",
    "utilization.memory": "0",
    "clocks.sm": "210",
    "clocks.mem": "1215",
    "clocks_throttle_reasons.active": "0x0000000000000001",
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(tmp_path, monkeypatch)


def test_everything_it_tells(program: Program) -> None:
    program.answers([CARD, {**CARD, "index": "1", "uuid": "GPU-bbbb"}])
    source = Smi()
    gpu = source.gpus[0]
    assert [gpu.uuid for gpu in source.gpus] == ["GPU-aaaa", "GPU-bbbb"]
    assert (gpu.index, gpu.name, gpu.driver) == (0, "NVIDIA A100-SXM4-40GB", "535.104.05")
    assert (gpu.bus, gpu.power_limit_w, gpu.memory_total_mib, gpu.split) == ("00000000:07:00.0", 400.0, 40960.0, False)
    assert source.samples([gpu]) == [
        GpuSample(
            gpu,
            temperature_c=31.0,
            power_w=54.21,
            memory_used_mib=1024.0,
            utilisation=7.0,
            memory_utilisation=0.0,
            clock_mhz=210.0,
            memory_clock_mhz=1215.0,
            throttle=("gpu_idle",),
        )
    ]


@pytest.mark.parametrize("odd", ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "ERR!", ""])
def test_odd_values_are_none(program: Program, odd: str) -> None:
    facts = ("index", "uuid", "name")
    program.answers([{name: value if name in facts else odd for name, value in CARD.items()}])
    source = Smi()
    assert (source.gpus[0].power_limit_w, source.gpus[0].memory_total_mib) == (None, None)
    assert source.samples(source.gpus) == [GpuSample(source.gpus[0])]


@pytest.mark.parametrize("unknown", ["clocks_event_reasons.active", "mig.mode.current", "enforced.power.limit"])
def test_a_field_this_version_does_not_know_is_left_out(program: Program, unknown: str) -> None:
    program.answers([CARD], unknown=unknown)
    source = Smi()
    assert source.samples(source.gpus)[0].throttle == ("gpu_idle",)
    assert source.gpus[0].power_limit_w == (None if unknown == "enforced.power.limit" else 400.0)


def test_units_and_commas_in_a_name_do_no_harm(program: Program) -> None:
    program.answers([{**CARD, "name": "GPU, with comma", "memory.total": "40960 MiB", "enforced.power.limit": "400 W"}])
    gpu = Smi().gpus[0]
    assert (gpu.name, gpu.memory_total_mib, gpu.power_limit_w) == ("GPU, with comma", 40960.0, 400.0)


def test_mig_instances_come_from_the_list(program: Program) -> None:
    listing = """cat <<'END'
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 1g.5gb      Device  0: (UUID: MIG-1111)
  MIG 2g.10gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
END
exit 0"""
    cards = [
        {**CARD, "mig.mode.current": "Enabled", "utilization.gpu": "[N/A]"},
        {**CARD, "index": "1", "uuid": "GPU-bbbb"},
    ]
    program.answers(cards, rest=listing)
    source = Smi()
    assert [(gpu.index, gpu.uuid, gpu.mig, gpu.split) for gpu in source.gpus] == [
        (0, "GPU-aaaa", None, True),
        (0, "MIG-1111", "1g.5gb", False),
        (0, "MIG-2222", "2g.10gb", False),
        (1, "GPU-bbbb", None, False),
    ]
    assert [gpu.whole for gpu in source.gpus] == ["", "GPU-aaaa", "GPU-aaaa", ""]
    assert source.samples([source.gpus[1]]) == [GpuSample(source.gpus[1])]


def test_mig_instances_that_cannot_be_listed_are_left_out(program: Program) -> None:
    program.answers([{**CARD, "mig.mode.current": "Enabled"}])
    assert [gpu.uuid for gpu in Smi().gpus] == ["GPU-aaaa"]


def test_processes(program: Program) -> None:
    program.answers(
        [CARD], rest="echo 'GPU-aaaa, 4711, 2048'; echo 'GPU-aaaa, 12, [N/A]'; echo 'GPU-b, [N/A], 1'; exit 0"
    )
    assert Smi().processes() == {"GPU-aaaa": [(4711, 2048.0), (12, None)]}


def test_a_program_that_fails_later_leaves_samples_without_values(program: Program) -> None:
    program.answers([CARD])
    source = Smi()
    program.says("echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    assert source.samples(source.gpus) == [GpuSample(source.gpus[0])]
    assert source.processes() == {}


def test_beside_a_broken_gpu_the_others_are_told_of(program: Program) -> None:
    program.says(
        "echo 'Unable to determine the device handle for GPU1: 0000:08:00.0: Unknown Error'\n"
        "echo '0, GPU-aaaa, 535, bus, 400, 40960, [N/A], NVIDIA A100'\nexit 15"
    )
    assert [gpu.uuid for gpu in Smi().gpus] == ["GPU-aaaa"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'No devices were found'; exit 6", "nvidia-smi: No devices were found"),
        ("echo 'NVIDIA-SMI has failed because' >&2; exit 9", "nvidia-smi: NVIDIA-SMI has failed because"),
        ("exit 12", "nvidia-smi: ended with 12"),
        ("exit 0", "nvidia-smi lists no GPU"),
        ("echo '[N/A], x, x, x, x, x, x, x'", "nvidia-smi lists no GPU"),
    ],
)
def test_why_it_cannot_be_used(program: Program, script: str, reason: str) -> None:
    program.says(script)
    with pytest.raises(Unavailable, match=f"^{reason}$"):
        Smi()


def test_a_program_that_hangs_is_ended(program: Program) -> None:
    program.says(f"echo $$ > {program.path}.pid; exec sleep 600")
    with pytest.raises(Unavailable, match=r"nvidia-smi did not answer within 0\.5 s"):
        Smi(seconds=0.5)
    pid = Path(f"{program.path}.pid").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_missing_program_and_one_that_may_not_run(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program.path.parent))
    with pytest.raises(Unavailable, match="there is no nvidia-smi"):
        Smi()
    program.says("exit 0")
    with pytest.raises(Unavailable, match="nvidia-smi: Is a directory|nvidia-smi: Permission denied"):
        Smi(str(program.path.parent))


def test_the_library_comes_first_then_the_program_then_nothing(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.answers([CARD])
    install(monkeypatch, fake_nvml([Card(uuid="GPU-nvml")]))
    assert (open_source().name, open_source().gpus[0].uuid) == ("NVML", "GPU-nvml")
    install(monkeypatch, None)
    assert (open_source().name, open_source().gpus[0].uuid) == ("nvidia-smi", "GPU-aaaa")
    program.says("echo 'No devices were found'; exit 6")
    source = open_source()
    assert (source.name, source.gpus) == ("", ())
    assert source.reason == "nvidia-ml-py is not installed; nvidia-smi: No devices were found"
    assert (source.samples([]), source.processes()) == ([], {})
    source.close()
