from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.cli import gpus, terminal
from lightkit.cli.arguments import help_of
from lightkit.monitor.gpus import GpuProcess
from tests.cli.test_logs import Interrupted
from tests.conftest import Cli
from tests.monitor.fakes import GIB, NOT_SUPPORTED, Card, NVMLError, fake_nvml, install

NOTHING = dict.fromkeys(("temperature", "power", "limit", "gpu", "clocks", "throttle"), NOT_SUPPORTED)


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever this one has."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    install(monkeypatch, None)


def cards() -> list[Any]:
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=11 * GIB)
    part = Card(uuid="MIG-1", name="NVIDIA A100 MIG 1g.5gb", used=2 * GIB, total=5 * GIB, **NOTHING)
    return [
        Card(processes=[mine, SimpleNamespace(pid=2**22 + 1, usedGpuMemory=300 * 2**20)]),
        Card(uuid="GPU-bbbb", name="NVIDIA A100", temperature=88, power=NOT_SUPPORTED, throttle=0x44, instances=[part]),
        NVMLError("GPU is lost"),
    ]


def test_without_a_gpu_it_says_so_and_how_to_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ((), ("--watch",), ("--query", "name")):
        done = cli("gpus", *arguments)
        assert done.out.startswith("no NVIDIA GPU here (nvidia-ml-py is not installed)\n")
        assert ("lightkit train device=cpu" in done.out, "device=mps" in done.out) == (True, False)
    nothing = {"source": None, "reason": "nvidia-ml-py is not installed", "gpus": []}
    assert json.loads(cli("gpus", "--json", "--watch", "1").out) == nothing
    monkeypatch.setattr(gpus.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(gpus.platform, "machine", lambda: "arm64")
    assert "device=mps" in cli("gpus").out


def test_the_table(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml(cards()))
    lines = cli("gpus").out.splitlines()
    assert lines[0] == "3 GPUs, driver 570.86.10, by NVML"
    assert lines[2:7] == [
        "GPU  torch   name              temp        power            memory  busy     clock  limited by",
        "0    -       H200             41 °C  312 / 700 W  12.0 / 140.0 GiB  98 %  1980 MHz  power cap",
        "1    -       A100             88 °C    ? / 700 W  12.0 / 140.0 GiB  98 %  1980 MHz  power cap, heat",
        "1    cuda:0    MIG 1g.5gb                            2.0 / 5.0 GiB",
        "2    -       does not answer",
    ]
    assert lines[8] == "a process computes on one MIG instance, chosen by its UUID:"
    assert lines[9] == "GPU 1  MIG 1g.5gb  device.gpus=[MIG-1]"
    assert lines[11].split() == ["GPU", "process", "user", "memory", "run", "or", "command"]
    assert lines[12].split()[:2] == ["0", str(os.getpid())]
    assert "11.0 GiB" in lines[12]
    assert lines[13].split() == ["0", str(2**22 + 1), "?", "300", "MiB", "?"]
    assert lines[15] == "torch counts the fastest GPU first: CUDA_DEVICE_ORDER=PCI_BUS_ID makes it count as shown here"


def test_columns_nobody_fills_are_left_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml([Card(**NOTHING)]))
    lines = cli("gpus").out.splitlines()
    assert lines[0] == "1 GPU, driver 570.86.10, by NVML"
    assert lines[2].split() == ["GPU", "torch", "name", "memory"]
    assert lines[-1] == "no process uses them"


def test_a_run_is_shown_by_its_folder(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml(cards()))
    for run, shown in (
        (project.resolve() / "outputs/runs/a", "outputs/runs/a"),
        (Path("/b"), "/b"),
        (None, "train.py"),
    ):
        monkeypatch.setattr(gpus, "describe", lambda *_, run=run: GpuProcess(1, None, None, "python train.py", run))
        assert cli("gpus").out.splitlines()[12].split()[-1] == shown


def test_visible_gpus_have_the_names_of_torch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml([Card(), Card(uuid="GPU-bbbb"), Card(uuid="GPU-cccc")]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-cccc,0")
    lines = cli("gpus", "--query", "index, torch ,uuid,throttle,mig,power_w,processes").out.splitlines()
    assert lines == [
        "index  torch   uuid      throttle      mig  power_w  processes",
        "0      cuda:1  GPU-aaaa  sw_power_cap  -    312.4    -",
        "1      -       GPU-bbbb  sw_power_cap  -    312.4    -",
        "2      cuda:0  GPU-cccc  sw_power_cap  -    312.4    -",
    ]


def test_json_has_all_that_is_known(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml(cards()))
    found = json.loads(cli("gpus", "--json").out)
    assert (found["source"], found["reason"]) == ("NVML", None)
    assert [row["index"] for row in found["gpus"]] == [0, 1, 1, 2]
    assert list(found["gpus"][0]) == list(gpus.FIELDS)
    assert found["gpus"][0]["processes"][0]["pid"] == os.getpid()
    assert found["gpus"][0]["processes"][1]["user"] is None
    assert found["gpus"][2]["mig"] == "1g.5gb"
    assert json.loads(cli("gpus", "--json", "--query", "uuid").out)["gpus"][0] == {"uuid": "GPU-aaaa"}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("1", ["GPU-bbbb", "MIG-1"]),
        ("MIG-1,0", ["MIG-1", "GPU-aaaa"]),
        ("GPU-b", ["GPU-bbbb"]),
        ("cuda:0", ["MIG-1"]),
        ("1a:00.0, 0", ["GPU-aaaa", "GPU-bbbb", "MIG-1"]),
        ("0,0", ["GPU-aaaa"]),
    ],
)
def test_some_gpus(cli: Cli, monkeypatch: pytest.MonkeyPatch, wanted: str, found: list[str]) -> None:
    install(monkeypatch, fake_nvml(cards()))
    done = cli("gpus", "-i", wanted, "--query", "uuid", "--no-header")
    assert (done.code, done.out.split()) == (0, found)


def test_a_gpu_that_is_not_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml(cards()))
    for wanted in ("7", "GPU-zzz", "cuda:5", "0000:ff:00.0"):
        done = cli("gpus", "--id", wanted)
        assert (done.code, "--id: no such GPU" in done.err, "GPU-aaaa" in done.err) == (2, True, True)


def test_csv(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml([Card(name='NVIDIA "H200", 141 GB'), Card(uuid="GPU-bbbb", fan=NOT_SUPPORTED)]))
    lines = cli("gpus", "--csv", "--query", "index,name,fan_percent,performance_state,ecc,persistence").out.splitlines()
    assert lines == [
        "index,name,fan_percent,performance_state,ecc,persistence",
        '0,"NVIDIA ""H200"", 141 GB",55,P0,on,on',
        "1,NVIDIA H200,,P0,on,on",
    ]
    everything = cli("gpus", "--csv", "--no-header").out.splitlines()
    assert len(everything) == 2
    assert everything[0].endswith(",off,off,")


def test_in_detail(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml(cards()))
    parts = cli("gpus", "-q").out.split("\n\n")
    assert [part.splitlines()[0] for part in parts] == [
        "GPU 0: NVIDIA H200",
        "GPU 1: NVIDIA A100",
        "GPU 1: NVIDIA A100 MIG 1g.5gb",
        "GPU 2: does not answer",
    ]
    lines = [line.split(maxsplit=1) for line in parts[0].splitlines()]
    assert ["fan_percent", "55 %"] in lines
    assert ["compute_mode", "default"] in lines
    assert ["power_limit_min_w", "200 W"] in lines
    assert ["heat"] in lines
    assert "fan_percent" not in parts[3]


def test_what_may_make_a_run_fail(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [Card(compute_mode=3), Card(uuid="GPU-b", ecc_errors={0: 0, 1: 2}), Card(uuid="GPU-c", compute_mode=2)]
    install(monkeypatch, fake_nvml(odd))
    lines = cli("gpus").out.splitlines()
    assert lines[-3:] == [
        "GPU 0 is in exclusive mode: a second process on it fails",
        "GPU 2 is closed to programs that compute",
        "GPU 1 has had 2 errors of its memory that could not be corrected: it needs a reset, or is broken",
    ]


def test_what_a_field_means(cli: Cli) -> None:
    done = cli("gpus", "--explain", "power_limit_w, throttle")
    assert done.code == 0
    assert done.out.startswith("power_limit_w (W): Power it may draw")
    assert "nvidia-smi: enforced.power.limit." in done.out
    assert "sw_thermal_slowdown" in done.out
    everything = cli("gpus", "--explain").out
    assert all(f"\n{name}" in f"\n{everything}" for name in gpus.FIELDS)
    assert all(f"{name}," in help_of("gpus") or name == "processes" for name in gpus.FIELDS)


def test_watching_until_it_is_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_nvml([Card()])
    install(monkeypatch, module)
    clock = Interrupted()
    monkeypatch.setattr(terminal, "time", clock)
    done = cli("gpus", "--watch", "--json", "--query", "power_w")
    lines = [json.loads(line)["gpus"] for line in done.out.splitlines()]
    assert (done.code, lines, clock.slept) == (0, [[{"power_w": 312.4}]] * 2, [2.0, 2.0])
    assert module.asked[-1] == "nvmlShutdown"
    monkeypatch.setattr(terminal, "time", Interrupted())
    assert cli("gpus", "--csv", "--query", "index,power_w", "--watch").out == "index,power_w\n0,312.4\n0,312.4\n"
    monkeypatch.setattr(terminal, "time", Interrupted())
    done = cli("gpus", "--watch", "0.5")
    assert done.out.count("  1 GPU, driver 570.86.10, by NVML\n") == 2
    assert "\x1b" not in done.out
