from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.cli import gpus
from tests.conftest import ROOT, Outcome
from tests.monitor.fakes import GIB, NOT_SUPPORTED, Card, NVMLError, fake_nvml, install

Cli = Callable[..., Outcome]
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


@pytest.mark.parametrize("arguments", [(), ("--watch",), ("--query", "name")])
def test_without_a_gpu_it_says_so_and_how_to_go_on(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("gpus", *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("no NVIDIA GPU here (nvidia-ml-py is not installed)\n")
    assert "lightkit train device=cpu" in done.out


def test_an_apple_computer_has_another_way(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "device=mps" not in cli("gpus").out
    monkeypatch.setattr(gpus.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(gpus.platform, "machine", lambda: "arm64")
    assert "device=mps" in cli("gpus").out


def test_without_a_gpu_in_json(cli: Cli) -> None:
    assert json.loads(cli("gpus", "--json", "--watch", "1").out) == {
        "source": None,
        "reason": "nvidia-ml-py is not installed",
        "gpus": [],
    }


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


def test_a_table_fits_the_terminal() -> None:
    row = dict.fromkeys(gpus.FIELDS) | {
        "index": 0,
        "torch": "cuda:0",
        "name": "N" * 60,
        "power_w": 3.0,
        "processes": [],
    }
    source = SimpleNamespace(gpus=(), name="NVML")
    assert max(map(len, gpus.page([row], source, width=40).splitlines()[1:])) == 40
    assert "3 W" in gpus.page([row], source, width=None)


@pytest.mark.parametrize(
    ("folder", "shown"),
    [("outputs/runs/a", "outputs/runs/a"), ("/elsewhere/b", "/elsewhere/b"), (None, "python train.py"), ("none", "?")],
)
def test_a_run_is_shown_by_its_folder(project: Path, folder: str | None, shown: str) -> None:
    run = None if folder in (None, "none") else project.resolve() / str(folder)
    command = None if folder == "none" else "python train.py"
    assert gpus._work({"run": run, "command": command}, project.resolve()) == shown


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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--watch", "0"), "--watch: not a time"),
        (("--watch", "soon"), "--watch: not a time"),
        (("--watch=inf",), "--watch: not a time"),
        (("--query", "index,powr_w"), "--query: no such field"),
        (("--query", " ,"), "--query: no such field"),
        (("--jsn",), "no such option"),
    ],
)
def test_wrong_arguments(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("gpus", *arguments)
    assert done.code == 2
    assert message in done.err


def test_help_names_every_field() -> None:
    assert all(f"{name}," in gpus.HELP["gpus"] or name == "processes" for name in gpus.FIELDS)


class Interrupted:
    """Stands in for `time`: the user presses Ctrl-C while the second picture is shown."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 2:
            raise KeyboardInterrupt


def test_watching_until_it_is_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_nvml([Card()])
    install(monkeypatch, module)
    clock = Interrupted()
    monkeypatch.setattr(gpus, "time", clock)
    done = cli("gpus", "--watch", "--json", "--query", "power_w")
    lines = [json.loads(line)["gpus"] for line in done.out.splitlines()]
    assert (done.code, lines, clock.slept) == (0, [[{"power_w": 312.4}]] * 2, [2.0, 2.0])
    assert module.asked[-1] == "nvmlShutdown"


def test_watching_elsewhere_than_on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml([Card()]))
    monkeypatch.setattr(gpus, "time", Interrupted())
    done = cli("gpus", "--watch", "0.5")
    assert done.out.count("  1 GPU, driver 570.86.10, by NVML\n") == 2
    assert "\x1b" not in done.out


def test_watching_on_a_terminal_gives_it_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "time", Interrupted())
    monkeypatch.setattr(gpus.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((80, 5)))
    gpus.watch(lambda: "\n".join(f"line {number}" for number in range(50)), 1.0, live=True)
    out = capsys.readouterr().out
    assert out.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert out.endswith("\x1b[J\x1b[?25h\x1b[?1049l")
    assert "line 1\x1b[K\n\x1b[J" in out
    assert "line 2" not in out


def test_torch_is_not_imported(project: Path) -> None:
    code = "import sys; from lightkit.cli import main; main(['gpus', '--json']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
