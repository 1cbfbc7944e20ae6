"""Results of metrics that are no numbers, such as curves: files while a run goes on, figures at its end."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lightkit.common import run_files
from lightkit.metrics import Shaped, write_figures
from lightkit.processes.files import write_whole
from lightkit.runner.member import MemberRun

_LOG = logging.getLogger(__name__)
_SPLITS = ("train", "val", "test")


def result_writer(run: MemberRun) -> Callable[[str, Mapping[str, Shaped]], None]:
    """Return what keeps the newest results of a split in the run's folder, and says once where they are."""
    told = set[Path]()

    def write(split: str, found: Mapping[str, Shaped]) -> None:
        if not run.session.ranks.main:
            return
        for name, path in write_results(found, run.path / run_files.FIGURES / split).items():
            if path not in told:
                told.add(path)
                run.logger.message(f"metrics.{split}.{name} is no number: see {path}")

    return write


def write_results(found: Mapping[str, Shaped], folder: Path) -> dict[str, Path]:
    """Write results to a file of NumPy each, which takes the place of an older one.

    Args:
        found: Results by the name of their metric.
        folder: Where the files go; made when there is something to write.

    Returns:
        The files by name.
    """
    written = dict[str, Path]()
    for name, result in found.items():
        folder.mkdir(parents=True, exist_ok=True)
        written[name] = path = folder / f"{name.replace('/', '_')}{run_files.METRIC_RESULT}"
        packed = io.BytesIO()
        np.savez(packed, **result.arrays())
        write_whole(path, packed.getvalue(), forced=True)
    return written


def evaluation_folder(folder: Path, split: str) -> Path:
    """Return where an evaluation after a run keeps such results."""
    return folder / run_files.FIGURES / Path(run_files.EVALUATION.format(split=split)).stem


def draw_results(run: MemberRun, step: int) -> None:
    """Draw what the metrics of a run that has come to its end gave last, for its folder and TensorBoard."""
    if not run.session.ranks.main:
        return
    for split in _SPLITS:
        folder = run.path / run_files.FIGURES / split
        for path in sorted(folder.glob(f"*{run_files.METRIC_RESULT}")):
            figure = draw_file(path)
            if figure is not None:
                write_figures({f"{split}/{path.stem}": figure}, run.logger, folder, step=step)


def draw_file(path: Path) -> Any:
    """Draw a file of `write_results`; None where it cannot be drawn."""
    from lightkit.metrics.drawing import draw  # matplotlib is slow to import

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError) as error:
        _LOG.warning("%s cannot be drawn: %s", path, error)
        return None
    return draw(arrays, title=path.stem)
