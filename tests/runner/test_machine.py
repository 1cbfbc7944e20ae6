from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.assembly import build
from lightkit.assembly.inspection import summary_of
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose
from lightkit.data import build_data
from lightkit.data.tensors import TensorData
from lightkit.device.precision import precision_named
from lightkit.device.ranks import Ranks
from lightkit.device.visible import waited_for
from lightkit.diagnostics.memory import Memory
from lightkit.loggers.events import read_scalars
from lightkit.monitor import usage
from lightkit.monitor.monitor import Monitor, NoMonitor
from lightkit.runner import Runner, machine
from lightkit.runner.comparison import compare_runs
from lightkit.runner.session import session
from lightkit.runs.reading import read_jsonl
from lightkit.trainer import Callback
from tests.device.test_visible import Machine
from tests.resume.sets import Drawing, text_file

QUICK = ("data=wine", "device=cpu", "trainer.epochs=3", "logger.every_steps=1", "metrics.figures=[]")


class Slowly(Callback):
    """Waits in each step until the machine was looked at once more."""

    def on_step(self, trainer: Any) -> None:
        watch = trainer._clock.vitals.__self__._monitor.watch
        while not watch.rows:
            time.sleep(0.001)


def run(folder: Path, *overrides: str, slowly: bool = True) -> dict[str, Any]:
    slow = ["++trainer.callbacks.slow={_target_: tests.runner.test_machine.Slowly}"]
    texts = [*QUICK, "logger.system.every_seconds=0.001", *(slow if slowly else ()), *overrides]
    return Runner(compose(texts).cfg, folder, overrides=texts).run()


@pytest.mark.thorough(first=0)
def test_what_was_seen_stands_in_the_rows_of_the_loop_and_nowhere_in_its_state(tmp_path: Path) -> None:
    result = run(tmp_path / "run")
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    steps = [row for row in rows if "train/loss_step" in row]
    assert all(row["system/ram_gib"] > 0 for row in steps)
    assert not any(name.startswith("system/") for row in rows if row not in steps for name in row)
    curves = read_scalars(tmp_path / "run")
    assert len(curves["vitals/system/ram_gib"]) == len(steps)
    assert not any(name.startswith("system/") for name in result["metrics"])
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    state = store.load_newest()[1]["state"]  # type: ignore[index]
    assert not any("system/" in name for name in state["last"])
    assert state["rows"] < len(rows) == state["rows"] + 1  # the test came after the last checkpoint
    assert json.loads((tmp_path / "run" / "result.json").read_text())["system"] == result["system"]
    assert result["system"]["ram_peak_gib"] > 0
    assert result["system"]["gpus"] == []
    assert result["system"]["bound"] is None


@pytest.mark.thorough
@pytest.mark.parametrize("watched", [False])
def test_the_memory_of_a_gpu_is_logged_beside_the_values_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    class Book(Memory):
        def read(self) -> dict[str, float]:
            return {"allocated_peak_gib": 3.5, "reserved_peak_gib": 4.0}

    monkeypatch.setattr(machine, "memory_of", Book)
    result = run(tmp_path / "run", f"logger.system.enabled={str(watched).lower()}", slowly=False)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    steps = [row for row in rows if "train/loss_step" in row]
    assert all(row["system/allocated_peak_gib"] == 3.5 and row["system/reserved_peak_gib"] == 4.0 for row in steps)
    assert not any("system/reserved_peak_gib" in row for row in rows if row not in steps)
    assert len(read_scalars(tmp_path / "run")["vitals/system/allocated_peak_gib"]) == len(steps)
    assert not any(name.startswith("system/") for name in result["metrics"])
    state = CheckpointStore(tmp_path / "run" / "checkpoints").load_newest()[1]["state"]  # type: ignore[index]
    assert not any("system/" in name for name in state["last"])


def test_watching_changes_nothing_that_counts(tmp_path: Path) -> None:
    run(tmp_path / "watched", slowly=False)
    result = run(tmp_path / "alone", "logger.system.enabled=false", slowly=False)
    assert [item for item in compare_runs(tmp_path / "watched", tmp_path / "alone") if item.different] == []
    assert result["system"] == {}


def test_a_run_ends_with_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "SHORTEST", 0.0)
    run(tmp_path, slowly=False)
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("machine "))
    assert "of the training time was spent waiting for a batch" in lines[at]
    assert lines[-1] == f"folder  {tmp_path}"


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tokens_and_the_share_of_the_peak_stand_beside_the_samples(tmp_path: Path, precision: str) -> None:
    text = text_file(tmp_path / "text.txt")
    model = ("model=transformer_lm", "model.dim=8", "model.depth=1", "model.heads=2", "trainer.steps=4")
    options = ("data=text", f"data.dataset.path={text}", "data.dataset.pattern=*.txt", "data.dataset.context_length=16")
    peak = ("logger.system.peak_tflops=0.001", f"device.precision={precision}")
    cfg = compose([*options, *model, *peak, "device=cpu", "logger.every_steps=1", "data.batch_size=8"]).cfg
    result = Runner(cfg, tmp_path / "run").run()
    steps = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "train/loss_step" in row]
    assert len(steps) == 4
    (counted,) = {round(row["speed/mfu"] / row["speed/samples_per_second"] * 1e9) for row in steps}
    flops = summary_of(cfg, build(cfg, tmp_path / "other")).training
    assert flops is not None
    assert counted == pytest.approx(flops.total / 8, rel=1e-6)
    for row in steps:
        assert row["speed/tokens_per_second"] == pytest.approx(16 * row["speed/samples_per_second"])
    assert result["system"]["tokens_per_second"] == pytest.approx(16 * result["system"]["samples_per_second"], rel=1e-3)
    assert result["system"]["mfu"] > 0


LOOKS = """
data=wine ; logger.system.peak_tflops=1 ; mfu
data=wine loss.weight=[1,2,3] trainer.ema.decay=0.9 ; logger.system.peak_tflops=1 ; mfu
data=wine ; optim.lr=0.1 ; -
data=wine ; logger.system.peak_tflops=1 logger.system.enabled=false ; -
data=wine model={_target_:tests.runner.test_machine.Looks} ; logger.system.peak_tflops=1 ; -
"""


@pytest.mark.parametrize("row", LOOKS.split("\n")[1:-1])
def test_where_the_peak_or_the_operations_are_not_known_there_is_no_share(row: str, tmp_path: Path) -> None:
    data, options, names = row.split(" ; ")
    cfg = compose([*data.split(), *options.split(), "device=cpu", "trust=[tests]"]).cfg
    learner = build(cfg, tmp_path)
    drawn = torch.random.get_rng_state()
    assert ",".join(machine.per_sample(cfg, learner)) == names.strip("-")
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(weight.grad is None for weight in learner.model.parameters())


@pytest.mark.parametrize(
    ("precision", "level", "peak"),
    [("fp32", None, 66.9), ("fp32", "high", 494.7), ("tf32", None, 494.7), ("fp32", "medium", 989.4),
     ("fp16", None, 989.4), ("fp64", None, 66.9)],
)  # fmt: skip
def test_the_peak_is_that_of_what_products_are_computed_in(
    monkeypatch: pytest.MonkeyPatch, precision: str, level: str | None, peak: float
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    switches = SimpleNamespace(matmul_level=level)
    engine = SimpleNamespace(device=torch.device("cuda"), precision=precision_named(precision), switches=switches)
    assert machine.known_peak(engine) == peak
    assert machine.known_peak(SimpleNamespace(device=torch.device("mps"))) is None


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_gpu_whose_peak_is_known_tells_its_share(tmp_path: Path, precision: str) -> None:
    options = ("data=digits", "model=cnn", f"loss.weight={[1] * 10}", f"device.precision={precision}", "device=cuda")
    learner = build(cfg := compose([*options, "logger.system.peak_tflops=1"]).cfg, tmp_path)
    assert machine.per_sample(cfg, learner)["mfu"] > 0


class Looks(nn.Module):
    """Looks at values, so its operations cannot be counted without any."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(13, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if bool(x.sum() > -1e9) else x


class Told(Ranks):
    """Several processes, of which this one is told what the others say."""

    def __init__(self, rank: int, notes: list[Any]) -> None:
        self.rank, self.notes, self.said = rank, notes, list[Any]()
        self.size = len(notes) + 1

    def gather(self, tensors: Any, note: Any = None) -> list[tuple[Any, list[torch.Tensor]]]:
        self.said.append(note)
        return [(told, []) for told in [note, *self.notes]] if self.main else []


def test_rank_0_watches_the_gpus_of_all_processes_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cuda_uuids", lambda devices: {device.index: f"u{device.index}" for device in devices})
    monkeypatch.setattr(machine.platform, "node", lambda: "here")
    others = [("here", [[1, "u1"]]), ("there", [[0, "v0"]]), ("there", [[7, "v7"]]), ("here", [[2, ""]])]
    devices = [torch.device("cuda", 1), torch.device("cuda", 0)]
    alone: Any = SimpleNamespace(parallel=SimpleNamespace(devices=devices), ranks=Ranks())
    watch: Any = machine.make_monitor(compose(list(QUICK)).cfg, tmp_path, alone)
    assert (watch.every_seconds, watch.watch.gpus, watch.watch.uuids) == (10.0, [1, 0], {0: "u0", 1: "u1"})
    ranks = Told(0, others)
    engine: Any = SimpleNamespace(parallel=SimpleNamespace(devices=[torch.device("cuda", 0)]), ranks=ranks)
    cfg = compose(list(QUICK)).cfg
    monitor = machine.make_monitor(cfg, tmp_path, engine)
    assert isinstance(monitor, Monitor)
    assert (monitor.watch.gpus, monitor.watch.uuids) == ([0, 1, 2], {0: "u0", 1: "u1"})
    assert ranks.said == [("here", [[0, "u0"]])]  # once, at the start
    second: Any = SimpleNamespace(parallel=engine.parallel, ranks=Told(1, []))
    for more in ([], ["logger.system.enabled=false"]):
        assert type(machine.make_monitor(compose([*QUICK, *more]).cfg, tmp_path, second)) is NoMonitor
        assert len(second.ranks.said) == 1, "another process says where it computes"


def test_a_run_waits_for_a_free_gpu_and_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    folder, seen = tmp_path / "run", list[bool]()
    folder.mkdir()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is put back afterwards
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    def ended(_seconds: float) -> None:
        seen.append((folder / ".waiting").exists())
        raise KeyboardInterrupt

    patched = partial(waited_for, look=lambda: Machine(used=(30_000,)), sleep=ended)
    monkeypatch.setattr("lightkit.runner.machine.waited_for", patched)
    cfg = compose(["data=wine", "device.gpus=auto:1", "device.wait=true"]).cfg
    with pytest.raises(KeyboardInterrupt), session(cfg, folder):
        pass
    assert seen == [True]
    assert list(folder.iterdir()) == []
    assert "waits for a GPU that is free (GPU 0 73% of its memory in use); Ctrl-C ends it" in capsys.readouterr().out


def test_loader_processes_count_only_where_there_are_any() -> None:
    tensors = TensorData(torch.zeros(20, 3), torch.arange(20) % 2)
    for dataset, count in ((tensors, None), (Drawing(rows=20), 2)):
        data = build_data(dataset=dataset, split={"val": 0.0, "test": 0.0}, batch_size=5, num_workers=2)
        assert machine.loading(data) == usage.Loading(5, count)
