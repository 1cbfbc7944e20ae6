"""The look for leaks where a run starts: what it finds, tells once and keeps, and what it leaves as it is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lightkit.assembly import build_shared
from lightkit.common import run_files
from lightkit.config import compose
from lightkit.doctor.checks import look_for_leaks
from tests.conftest import Outcome

Run = Callable[..., Outcome]
QUICK = ("trainer.epochs=1", "model.hidden=[8]", "logger.tensorboard.enabled=false", "metrics.figures=[]")
RUN = ("data.dataset.task=multiclass", *QUICK)


def rows(kind: str, count: int = 240) -> str:
    """A table as CSV with a planted fault, or none."""
    draw, lines = random.Random(0), ["a,b,c,d,patient_id,y"]
    for row in range(count):
        numbers = [f"{draw.gauss(0, 1):.4f}" for _ in range(4)]
        y = int(draw.random() < 0.5)
        numbers[3] = f"{3 * y + draw.random():.3f}" if kind == "target" else numbers[3]
        group = row // 4 if kind == "groups" else f"{draw.random():.4f}"
        lines.append(",".join([*numbers, str(group), str(y)]))
    return "\n".join(lines[: 1 + count // 2] + lines[1 : 1 + count // 2] if kind == "twice" else lines) + "\n"


def train(cli: Run, kind: str, *more: str, folder: str = "run") -> tuple[Outcome, list[dict[str, Any]]]:
    """Train on such a table; returns what was said, and what is kept of what was found."""
    Path("rows.csv").write_text(rows(kind))
    data = ("data=csv", "data.dataset.path=rows.csv", "data.dataset.target=y")
    done = cli("train", *data, *RUN, f"hydra.run.dir={folder}", *more)
    assert done.code == 0, done.err
    kept = Path(folder, run_files.LEAKS)
    return done, json.loads(kept.read_text())["findings"] if kept.exists() else []


def told(text: str) -> list[str]:
    return [line for line in text.splitlines() if "doctor  " in line]


@pytest.mark.parametrize(
    ("kind", "check", "more"),
    [
        ("twice", "overlap of splits", ()),
        ("target", "leaking features", ()),
        ("groups", "groups", ()),
        ("plain", "order of time", ("data.split.time=a",)),
        ("plain", "", ()),
        ("twice", "", ("data.leak_check=false",)),
    ],
)
def test_what_is_found_is_one_line_and_a_file(cli: Run, kind: str, check: str, more: tuple[str, ...]) -> None:
    done, kept = train(cli, kind, *more)
    assert {each["check"] for each in kept} == ({check} if check else set())
    assert all(each["measured"] and each["fix"] and each["status"] in ("error", "warning") for each in kept)
    lines = told(done.out)
    assert len(lines) == bool(check)
    assert all(line in Path("run", run_files.LOG).read_text() for line in lines)
    assert not lines or (kept[0]["measured"] in lines[0] and "lightkit doctor OVERRIDES" in lines[0])


def test_a_resume_says_and_keeps_it_no_second_time(cli: Run) -> None:
    _, kept = train(cli, "twice", "trainer.stop_at=1", "trainer.epochs=2")
    resumed = cli("resume", "run", "trainer.stop_at=null")
    assert resumed.code == 0, resumed.err
    assert not told(resumed.out)
    assert json.loads(Path("run", run_files.LEAKS).read_text())["findings"] == kept


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("engine", ["vectorized", "processes"])
@pytest.mark.parametrize("kind", ["cv=2", "ensemble=voting"])
def test_several_models_are_looked_at_once(cli: Run, kind: str, engine: str) -> None:
    more = ("ensemble.size=2",) if kind != "cv=2" else ()
    done, _ = train(cli, "twice", kind, f"{kind.partition('=')[0]}.engine={engine}", *more)
    assert len(told(done.out)) == 1
    assert [*Path("run").rglob(run_files.LEAKS)] == [Path("run", run_files.LEAKS)]


def test_the_bits_are_those_without_it(cli: Run) -> None:
    weights = []
    for number, value in enumerate(("true", "false")):
        train(cli, "twice", f"data.leak_check={value}", "checkpoint.export=weights", folder=str(number))
        weights.append(torch.load(Path(str(number), run_files.WEIGHTS), weights_only=True))
    assert all(torch.equal(one, other) for one, other in zip(*(each.values() for each in weights), strict=True))


def test_rows_that_the_base_has_learnt_from(cli: Run) -> None:
    assert cli("train", "data=wine", *QUICK, "hydra.run.dir=base").code == 0
    for seed, count in ((1, 1), (0, 0)):
        start = ("finetune=full", "finetune.weights.path=base", f"hydra.run.dir=tuned{seed}")
        done = cli("train", "data=wine", *QUICK, f"data.split.seed={seed}", *start)
        assert done.code == 0, done.err
        assert len(told(done.out)) == count
        assert all("the base has learnt from" in line for line in told(done.out))


def test_images_are_compared_by_their_files_and_not_decoded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    for number in range(90):
        folder = project / "images" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(256, (9, 9, 3), generator=generator, dtype=torch.uint8).numpy()
        for copy in range(1 + (number < 20)):
            Image.fromarray(pixels).save(folder / f"{number}{'xy'[copy]}.png")
    cfg = compose(["data=image_folder", "data.dataset.root=images", "data.dataset.size=8", "model=cnn"]).cfg
    shared = build_shared(cfg, project / "run")
    monkeypatch.setattr(Image, "open", None)
    found = [each for each in look_for_leaks(cfg, shared) if each.is_bad]
    assert {each.check for each in found} == {"overlap of splits"}


def test_a_project_looks_itself_and_what_fails_is_silent(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("conf").mkdir()
    Path("conf/plugins.yaml").write_text("data.leak_check: {mine: looks.names}\n")
    Path("looks.py").write_text(
        "import torch\nfrom lightkit.doctor.finding import Finding\n\n"
        "def names(cfg, shared):\n    torch.rand(3)\n"
        "    yield Finding('names', 'warning', f'{len(shared.data.source)} rows', 'why', fix='none')\n"
    )
    monkeypatch.setattr("lightkit.doctor.data.sample.DataSample.splits", None)
    done, kept = train(cli, "plain")
    assert [each["measured"] for each in kept] == ["240 rows"]
    assert "doctor  240 rows; " in done.out
