from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout as Proto

from lightkit.loggers import TensorBoardLogger
from lightkit.loggers.events import CATEGORIES, TAG, Layout, read_events, repeated

ROWS = [
    {"step": 2, "epoch": 0, "train/loss_step": 0.9, "grad/norm": 2.0, "lr/decay": 0.1, "lr/no_decay": 0.1},
    {"step": 4, "epoch": 1, "train/loss": 0.8, "train/accuracy": 0.5},
    {"step": 4, "epoch": 1, "val/loss": 0.7, "val/accuracy": 0.6, "val/f1/a cat (2)": 0.1},
    {"step": 8, "epoch": 2, "train/loss": 0.6, "train/accuracy": 0.7},
    {"step": 8, "epoch": 2, "test/loss": 0.6},
]
CHARTS = [
    ["loss", "accuracy", "f1/a_cat__2_"],
    ["gradient norm", "learning rate", "loss_step"],
    [],
]


def log(folder: Path, rows: list[dict[str, float]], *, resume: int = 0) -> None:
    logger = TensorBoardLogger(folder)
    logger.start(resume, [row for row in ROWS if row["step"] <= resume])
    for row in rows:
        values = {name: value for name, value in row.items() if "/" in name}
        logger.scalars(values, step=int(row["step"]), epoch=int(row["epoch"]))
    logger.close()


def layouts(folder: Path) -> list[tuple[int, Proto]]:
    """The layouts of a run, each with its step, in the order in which TensorBoard reads them."""
    return [
        (event.step, Proto.FromString(value.tensor.string_val[0]))
        for file in sorted(folder.glob("events.out.tfevents.*"))
        for _, _, event in read_events(file)
        for value in event.summary.value
        if value.tag == TAG
    ]


def charts(found: Proto) -> list[list[str]]:
    return [sorted(chart.title for chart in category.chart) for category in found.category]


def test_training_and_validation_share_a_chart_and_each_value_of_the_run_has_one(tmp_path: Path) -> None:
    log(tmp_path, ROWS)
    found = layouts(tmp_path)
    assert [step for step, _ in found] == [2, 4, 4]  # only where there is a new chart
    assert [category.title for category in found[-1][1].category] == [*CATEGORIES]
    assert charts(found[-1][1]) == [sorted(names) for names in CHARTS]
    assert repeated(tmp_path) == {}
    patterns = {chart.title: chart.multiline.tag[0] for part in found[-1][1].category for chart in part.chart}
    for tag in ("train/f1/a_cat__2_", "val/f1/a_cat__2_"):
        assert [title for title, pattern in patterns.items() if re.match(pattern, tag)] == ["f1/a_cat__2_"]
    assert not re.match(patterns["loss"], "train/loss_step")


@pytest.mark.parametrize("step", [2, 4])
def test_a_resumed_run_has_the_whole_layout(tmp_path: Path, step: int) -> None:
    log(tmp_path, ROWS)
    log(tmp_path, [row for row in ROWS if row["step"] > step], resume=step)
    assert charts(layouts(tmp_path)[-1][1]) == [sorted(names) for names in CHARTS]
    assert repeated(tmp_path) == {}


@pytest.mark.parametrize("step", [2, 4, 8])
def test_however_often_a_run_is_resumed_a_layout_is_written_once(tmp_path: Path, step: int) -> None:
    log(tmp_path, ROWS)
    once = [found for _, found in layouts(tmp_path)]
    for _ in range(3):
        log(tmp_path, [row for row in ROWS if row["step"] > step], resume=step)
        assert [found for _, found in layouts(tmp_path)] == once
        assert repeated(tmp_path) == {}


def test_a_run_of_before_gets_one_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Layout, "unwritten", lambda _: [])
        log(tmp_path, ROWS[:3])
    assert not layouts(tmp_path)
    log(tmp_path, ROWS[3:], resume=4)
    assert charts(layouts(tmp_path)[-1][1]) == [sorted(names) for names in CHARTS]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("vitals/system/gpu0_utilisation", "GPU: utilisation (%)"),
        ("vitals/system/gpu12_mig_memory_gib", "GPU: memory (GiB)"),
        ("vitals/system/gpu1_power_w", "GPU: power (W)"),
        ("vitals/system/gpu1_temperature_c", "GPU: temperature (°C)"),
        ("vitals/system/cpu_machine_percent", "CPU (%)"),
        ("vitals/system/ram_used_percent", "memory (%)"),
        ("vitals/speed/samples_per_second", "samples per second"),
        ("vitals/system/disk_used_percent", None),
        ("view/test/loss", None),
        ("main/train/loss", None),
    ],
)
def test_charts_of_the_machine(name: str, title: str | None) -> None:
    layout = Layout()
    layout.add([name])
    (found,) = [Proto.FromString(value.tensor.string_val[0]) for value in layout.unwritten()] or [None]
    assert charts(found) == [[], [], [title]] if found is not None else title is None
    assert layout.unwritten() == []
