"""Each benchmark runs, gives its figures, and all sides did the same work. How fast they were is not asked here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch

from benchmarks import (
    caching,
    checkpoint,
    csv_tables,
    ddp,
    gpu,
    gpu_graphs,
    gpu_throughput,
    loader,
    lora,
    memory,
    monitor,
    padded_texts,
    scale,
    startup,
    step_overhead,
    watch,
)
from benchmarks.harness import Bar, Sample, check_same, figure, interleave, judge
from lightkit.device import switches as compiling


@pytest.fixture(autouse=True)
def _as_before(root, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.chdir(root)
    # A first round that does not count is for those who want to know how fast they are.
    monkeypatch.setitem(interleave.__kwdefaults__, "warm_ups", 0)
    yield
    torch.set_num_threads(threads)


def figures(text: str) -> dict[str, float]:
    return {
        name: float(value) for name, value in re.findall(r"^(.+, (?:wall|cpu|thread|peak)): (-?[\d.]+)", text, re.M)
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("main", "arguments", "bars"),
    [
        (step_overhead.main, ["--rounds", "1", "--steps", "20", "--no-peers"], len(step_overhead.BARS)),
        (checkpoint.main, ["--rounds", "1", "--steps", "1"], len(checkpoint.BARS)),
        (lora.main, ["--rounds", "1", "--steps", "1", "--no-peers"], 2),
        (monitor.main, ["--rounds", "1", "--steps", "20"], len(monitor.BARS)),
        (watch.main, ["--rounds", "2", "--steps", "100"], len(watch.BARS)),
        pytest.param(ddp.main, ["--rounds", "1", "--steps", "3"], len(ddp.BARS), marks=pytest.mark.slow),
        pytest.param(padded_texts.main, ["--rounds", "1", "--steps", "4"], 2, marks=pytest.mark.slow),
        pytest.param(csv_tables.main, ["--rounds", "1", "--steps", "2"], len(csv_tables.BARS), marks=pytest.mark.slow),
        pytest.param(caching.main, ["--rounds", "1", "--steps", "1"], 2, marks=pytest.mark.slow),
        pytest.param(memory.main, ["--steps", "10"], 0, marks=pytest.mark.slow),
        pytest.param(scale.main, ["--only", "steps", "--largest", "2"], 0, marks=pytest.mark.slow),
        pytest.param(startup.main, ["--rounds", "1"], len(startup.BARS), marks=pytest.mark.slow),
    ],
    ids=[
        "step_overhead",
        "checkpoint",
        "lora",
        "monitor",
        "watch",
        "ddp",
        "padded_texts",
        "csv_tables",
        "caching",
        "memory",
        "scale",
        "startup",
    ],
)
def test_a_benchmark_gives_its_figures(main: Callable, arguments, bars, capsys):
    if main is padded_texts.main:
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
    if main is csv_tables.main:
        pytest.importorskip("pandas", reason="what it is compared with")
    main(arguments)
    assert len(figures(capsys.readouterr().out)) == bars


@pytest.mark.thorough
def test_loaders_are_measured_on_data_in_memory_and_on_files(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    from benchmarks import jpegs

    monkeypatch.setattr(jpegs, "WORKERS", (0, 1))
    monkeypatch.setattr(jpegs, "SIZE", 32)
    loader.main(["--rounds", "1", "--steps", "3"])
    told = capsys.readouterr().out
    bars = ("index_select, wall", "DataLoader, wall", "DataLoader, cpu", "timm, cpu", "timm as it comes, cpu")
    assert figures(told).keys() == {f"lightkit / {bar}" for bar in bars}
    assert re.findall(r"^JPEG: (.+); workers: (\d)", told, re.M) == [
        (case, workers)
        for case in ("resize", "resize, shift, flip", "resize, crop, flip, colour", "the same with torchvision's crop")
        for workers in ("0", "1")
    ]
    assert len(re.findall(r"^lightkit / timm, cpu: [\d.]+ \(at most 1: ", told, re.M)) == 6
    assert len(re.findall(r" samples 150, mean 0\.\d+$", told, re.M)) == 32


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(("module", "lines"), [(gpu_throughput, 1), (gpu_graphs, 2)])
def test_a_benchmark_for_a_gpu_runs_on_a_cpu_where_it_is_told_to(
    module: ModuleType, lines: int, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    monkeypatch.setattr(module, "CASES", module.CASES[:1])
    assert module.main(["--device", "cpu", "--small", "--rounds", "1", "--steps", "2", "--warm", "1"])
    found = re.findall(r"^a small .+, throughput: [\d.]+$", capsys.readouterr().out, re.M)
    assert len(found) == lines  # and no bar: this is no measurement


@pytest.mark.parametrize("module", [gpu_throughput, gpu_graphs])
def test_a_benchmark_for_a_gpu_says_that_it_needs_one(module: ModuleType, capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module.main([])
    assert capsys.readouterr().out == f"{gpu.NO_GPU}\n"


def test_a_throughput_below_its_bar_is_told(capsys) -> None:
    results = {"ours": [Sample(4.0)], "theirs": [Sample(2.0)]}
    assert not gpu.judge("work", results, "ours", base="theirs", least=0.98)
    assert gpu.judge("work", results, "theirs", base="ours", least=2.0)
    assert "work: ours / theirs, throughput: 0.500 (at least 0.98: MISSED)" in capsys.readouterr().out


@pytest.mark.thorough
def test_no_slow_module_is_loaded_before_the_first_step(tmp_path):
    sample = startup.process(startup.COMMANDS[startup.FIRST], tmp_path)
    assert sample.proof == {"slow modules loaded": 0}


def test_a_process_that_fails_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 2:\nerror: no such command"):
        startup.process([*startup.LIGHTKIT, "walk"], tmp_path)


def test_contestants_take_turns():
    order: list[str] = []
    contestants = {name: lambda name=name: order.append(name) or Sample() for name in "abc"}
    results = interleave(contestants, rounds=2, warm_ups=1)
    assert "".join(order) == "cababcbca"
    assert {name: len(samples) for name, samples in results.items()} == {"a": 2, "b": 2, "c": 2}


def test_figures_pair_the_times_of_a_round(capsys):
    times = {"ours": [(2.0, 1.0), (30.0, 3.0), (4.0, 1.0)], "base": [(1.0, 1.0), (10.0, 2.0), (1.0, 4.0)]}
    results = {name: [Sample(wall, cpu) for wall, cpu in pairs] for name, pairs in times.items()}
    assert figure(results, Bar("ours", "base")) == 3.0
    assert figure(results, Bar("ours", "base", kind="cpu", minus=True)) == 0.0
    assert figure(results, Bar("ours", "")) == 4.0
    assert not judge(results, [Bar("ours", "base", 2.0), Bar("ours", "base", kind="cpu")])
    assert "ours / base, wall: 3.000 (at most 2: MISSED)" in capsys.readouterr().out


def test_different_work_is_refused():
    results = {"ours": [Sample(proof={"steps": 10})], "base": [Sample(proof={"steps": 11})], "floor": [Sample()]}
    check_same(results, steps=1)
    with pytest.raises(RuntimeError, match="did not do the same work: steps is"):
        check_same(results, steps=0)
