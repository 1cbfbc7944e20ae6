from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.detached.tensorboard import LineFilter, RunLinks, named_runs
from lightkit.loggers import TensorBoardLogger
from tests.browser import CHROMIUM, Page, browser
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, until

NAMES = {
    "runs/2026-01-31/12-00-07-wine_mlp": "wine_mlp 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-wine_mlp/optim.lr=0.01,seed=0": "lr=0.01,seed=0 wine_mlp 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-a/data=wine": "data=wine a 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-a/optim.lr=1,finetune.head.lr=2": "optim.lr=1,finetune.head.lr=2 a 01-31 12-00",
    "mine/first": "mine first",
}
RATES = (0.01, 0.1)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def test_only_news_of_tensorboard_is_passed_on() -> None:
    usual = [
        "TensorFlow installation not found - running with reduced feature set.\n",
        "\n",
        "NOTE: Using experimental fast data loading logic. To disable, pass\n",
        '    "--load_fast=false" and report issues on GitHub. More details:\n',
        "    https://github.com/tensorflow/tensorboard/issues/4784\n",
        "TensorBoard 2.21.0 at http://127.0.0.1:6006/ (Press CTRL+C to quit)\n",
    ]
    passed = io.StringIO()
    stream: io.TextIOBase = LineFilter(passed)
    for line in [*usual, "E1121 the disk", " is full\x1b[2J\nand"]:
        stream.write(line)
    assert passed.getvalue() == "E1121 the disk is full\\x1b[2J\n"


def run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.host.1.0").touch()
    return folder


@pytest.fixture
def links(tmp_path: Path) -> RunLinks:
    """Links to the runs below `outputs`, made in `links`."""
    (tmp_path / "links").mkdir()
    return RunLinks(tmp_path / "outputs", tmp_path / "links")


def test_every_run_has_a_link_named_by_what_tells_it_from_others(links: RunLinks) -> None:
    made = [run(links.runs / path) for path in NAMES]
    made.append(run(links.runs / "runs/2026-01-31/12-00-59-wine_mlp"))
    run(made[0] / "inner")
    (links.runs / "again").symlink_to(links.runs)
    several = links.runs / "runs" / "demo"  # a run of several models is one from its beginning
    run(several / "members" / "00")
    (several / "config.yaml").touch()
    links.refresh()
    linked = {link.name: link.resolve() for link in links.place.iterdir()}
    names = [*NAMES.values(), "wine_mlp 01-31 12-00 (2)", "runs demo"]
    assert linked == dict(zip(names, [*made, several]))


def test_runs_come_and_go_and_names_stay(links: RunLinks) -> None:
    old = run(links.runs / "runs/2026-01-31/12-00-09-a")
    links.refresh()
    new = run(links.runs / "runs/2026-01-31/12-00-01-a")
    links.refresh()
    assert (links.place / "a 01-31 12-00").resolve() == old
    assert (links.place / "a 01-31 12-00 (2)").resolve() == new
    (old / "events.out.tfevents.1.host.1.0").unlink()
    old.rmdir()
    links.refresh()
    assert [link.name for link in links.place.iterdir()] == ["a 01-31 12-00 (2)"]


def test_links_are_there_while_the_board_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "2026-01-31/12-00-00-a")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "gone").symlink_to(tmp_path / "nowhere")  # of a board that was killed
    with named_runs(folder, tmp_path / "links") as place:
        assert [link.name for link in place.iterdir()] == ["a 01-31 12-00"]
    assert not place.exists()

    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with named_runs(folder, tmp_path / "links") as place:
        assert place == folder, "where no links can be made runs go by their paths"


def write_run(folder: Path, rate: float) -> None:
    """What a run of two epochs leaves for TensorBoard."""
    from matplotlib.figure import Figure

    logger = TensorBoardLogger(folder, "val/accuracy", "max")
    logger.images("train/images", torch.rand(4, 1, 8, 8), step=0)
    for epoch in (1, 2):
        step = 10 * epoch
        machine = {"system/gpu0_utilisation": 90.0, "speed/samples_per_second": 1e3}
        logger.scalars({"lr/all": rate, "grad/norm": 1.0 / epoch, **machine}, step=step, epoch=epoch)
        logger.scalars({"train/loss": 1.0 / epoch, "train/accuracy": 0.4 * epoch}, step=step, epoch=epoch)
        logger.scalars({"val/loss": 1.1 / epoch, "val/accuracy": 0.3 * epoch}, step=step, epoch=epoch)
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1])
    logger.figure("test/roc", figure, step=20)
    logger.hparams({"optim": {"lr": rate}, "seed": 0}, [f"optim.lr={rate}"])
    logger.end("finished")
    logger.close()


def is_read(address: str) -> bool:
    """Whether TensorBoard knows everything of both runs: what they have written last, too."""

    def asked(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{address}data/plugin/{path}", timeout=PATIENCE_SECONDS) as answer:
            return dict(json.load(answer))

    tags, pictures = asked("scalars/tags"), asked("images/tags")
    layouts = [category.get("chart", []) for category in asked("custom_scalars/layout").get("category", [])]
    whole = all("val/accuracy" in tags.get(f"lr={rate}", {}) for rate in RATES)
    return whole and all("view/test/roc" in pictures.get(f"lr={rate}", {}) for rate in RATES) and len(layouts) == 3


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where two runs are to be seen."""
    folder = tmp_path_factory.mktemp("runs")
    for rate in RATES:
        write_run(folder / f"lr={rate}", rate)
    command = [sys.executable, "-m", "lightkit", "board", str(folder), "--port"]
    with reserved_port() as port, subprocess.Popen([*command, str(port)], stdout=subprocess.PIPE, text=True) as process:
        address, lines = f"http://127.0.0.1:{port}/", process.stdout
        assert lines is not None
        try:
            assert any(address in line for line in lines), "the board has ended"
            until(lambda: is_read(address), "TensorBoard to read the runs")  # a page does not ask twice
            yield address
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a browser."""
    with browser(tmp_path_factory.mktemp("browser"), size=(1400, 1600)) as opened:
        yield opened


@needs_browser
@pytest.mark.thorough
@pytest.mark.slow
def test_the_layout_draws_training_and_validation_in_one_chart(address: str, page: Page) -> None:
    charts = ("loss", "accuracy", "learning rate", "gradient norm", "samples per second", "GPU: utilisation (%)")
    # squares for training and diamonds for validation, in each run and chart
    pairs = [f"◼\ntrain/{name} (lr={rate})\n◆\nval/{name} (lr={rate})\n" for name in charts[:2] for rate in RATES]
    page.open(f"{address}#custom_scalars", "training and validation", "optimization", "machine", *charts, *pairs)
    page.wait_for_elements("vz-line-chart2, vz-line-chart", len(charts))


@needs_browser
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tab", "texts", "elements"),
    [
        ("#hparams", ("optim.lr", "0.01", "0.1", "seed"), None),
        ("?forceSVG=true#timeseries", ("lr=0.01", "lr=0.1", "main", "4 cards", "Smoothed"), ("scalar-card", 4)),
        ("#images", ("view/train/images", "view/test/roc", "lr=0.01"), ("tf-image-loader", 2)),
    ],
    ids=["hyperparameters", "curves", "pictures"],
)
def test_pages(address: str, page: Page, tab: str, texts: tuple[str, ...], elements: tuple[str, int] | None) -> None:
    page.open(address + tab, *texts)
    if elements:
        page.wait_for_elements(*elements)
