"""Figures and tables of the final evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lightkit.common.csv_lines import CsvWriter
from lightkit.common.pixels import pixels
from lightkit.metrics.counts import ClassRow, Counts, per_class

TASKS = ("multiclass", "binary", "multilabel")
NAMES = ("confusion_matrix", "per_class", "roc", "pr")


class Figures:
    """Collects outputs of a whole split and draws what was asked for; give it to `evaluate` beside the metrics.

    Args:
        task: Kind of targets; only `multiclass`, `binary` and `multilabel` have figures, others draw nothing.
        names: `confusion_matrix`, `per_class`, `roc`, `pr`; others are not of a single model, and left out.
        class_names: Names of classes or labels; numbers where they do not fit `num_classes`.
        num_classes: Classes or labels; 1 for `binary`.
    """

    def __init__(self, task: str, names: Sequence[str], class_names: Sequence[str], num_classes: int) -> None:
        task = "binary" if (task, num_classes) == ("multilabel", 1) else task
        self.task, self.names = task, [name for name in names if name in NAMES] if task in TASKS else []
        classes = 2 if task == "binary" else num_classes
        known = [str(name) for name in class_names]
        if task == "binary" and len(known) == 1:
            known = [f"not {known[0]}", known[0]]
        self.class_names = known if len(known) == classes else [str(index) for index in range(classes)]
        self._counts = Counts(self.task, num_classes, curves=bool({"roc", "pr"} & set(self.names)))
        self._empty = True

    def update(self, preds: Any, target: Any, *_more: Any) -> None:
        """Take in a batch; same arguments as `SplitMetrics.update`, of which only the first two are used."""
        if self.names and isinstance(preds, Tensor) and isinstance(target, Tensor):
            self._empty = False
            self._counts.update(preds, target)

    def draw(self) -> dict[str, Any]:
        """Draw the matplotlib figures, by name, in the order asked for."""
        from lightkit.metrics import drawing  # matplotlib is slow to import

        if self._empty:
            return {}

        def confusion() -> Any:
            matrix = self._counts.confusion()
            draw = drawing.label_matrices if matrix.ndim == 3 else drawing.confusion_matrix
            return draw(matrix, self.class_names)

        makers = {
            "confusion_matrix": confusion,
            "per_class": lambda: drawing.per_class(self.rows()),
            "roc": lambda: drawing.roc(self._counts.curves("roc", self._curve_names("roc"))),
            "pr": lambda: drawing.precision_recall(self._counts.curves("pr", self._curve_names("pr"))),
        }
        return {name: makers[name]() for name in self.names}

    def rows(self) -> list[ClassRow]:
        """Return the per-class table."""
        return [] if self._empty else per_class(self._counts.confusion(), self._curve_names("pr"))

    def tables(self) -> dict[str, tuple[list[str], list[list[Any]]]]:
        """Return tables by name: heads of the columns and rows of plain values."""
        if self._empty or "per_class" not in self.names:
            return {}
        return {"per_class": (list(ClassRow._fields), [list(row) for row in self.rows()])}

    def write(self, logger: Any, folder: Path | str, *, step: int, split: str = "test") -> None:
        """Hand figures and tables to a logger, and write them as PNG and CSV files.

        Args:
            logger: A `lightkit.loggers.Logger`.
            folder: Where the files go; made when there is something to write.
            step: Optimizer steps taken.
            split: Begins the names in the logger (`test/roc`).
        """
        target = Path(folder)
        write_figures({f"{split}/{name}": figure for name, figure in self.draw().items()}, logger, target, step=step)
        for name, (columns, rows) in self.tables().items():
            with (target / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                CsvWriter(file).rows([columns, *rows])
            logger.text(f"{split}/{name}", _markdown(columns, rows), step=step)

    def _curve_names(self, kind: str) -> list[str]:
        """Return the classes a curve is drawn for: a yes-or-no question has one."""
        return self.class_names[1:] if self.task == "binary" else self.class_names


def write_figures(figures: Mapping[str, Any], logger: Any, folder: Path, *, step: int) -> None:
    """Hand figures to a logger, and write them as PNG files.

    Args:
        figures: Matplotlib figures by name, such as `test/roc`, which becomes `roc.png`.
        logger: A `lightkit.loggers.Logger`.
        folder: Where the files go; made when there is something to write.
        step: Optimizer steps taken.
    """
    if not figures:
        return
    from matplotlib.image import imsave  # slow to import, as all of matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        imsave(folder / f"{name.rpartition('/')[2]}.png", pixels(figure), dpi=figure.dpi)
        logger.figure(name, figure, step=step)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "–" if math.isnan(value) else f"{value:.4f}"
        return str(value).replace("|", "\\|")

    lines = [columns, ["---"] * len(columns), *(map(cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
