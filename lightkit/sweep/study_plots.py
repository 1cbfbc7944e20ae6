"""Pictures of a study: how the best value came about, which keys matter, and what each value led to."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.loggers.files import replace_file

if TYPE_CHECKING:
    from optuna.study import Study

HISTORY, IMPORTANCE, SLICES, PARETO = "history", "importance", "slice", "pareto"
PAGE = "study.html"
"""Name of the page with all pictures; it opens without a server and without a network."""


def write_plots(study: Study, folder: Path, objectives: Sequence[str]) -> list[Path]:
    """Write the pictures of a study as PNG, and as one page of HTML where plotly is installed.

    History, importance (fANOVA, http://proceedings.mlr.press/v32/hutter14.html) and slices need a finished trial, and
    importance two of them with other values; what cannot be drawn yet is left out.

    Args:
        study: With its trials.
        folder: Where to; made when it is missing.
        objectives: Names of what is optimized.

    Returns:
        The files.
    """
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not finished:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    varies = len(finished) > 1 and len({str(trial.params) for trial in finished}) > 1
    wanted = [PARETO] if len(study.directions) in (2, 3) else []
    wanted += [HISTORY, *([IMPORTANCE, SLICES] if varies else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls its plots by matplotlib experimental
        written = [path for name in wanted for path in _draw(name, study, folder, objectives)]
        page = _page(wanted, study, objectives)
    if page is not None:
        replace_file(folder / PAGE, page)
        written.append(folder / PAGE)
    return written


def _draw(name: str, study: Study, folder: Path, objectives: Sequence[str]) -> list[Path]:
    """Draw a picture with matplotlib, one for each objective."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import optuna.visualization.matplotlib as drawing

    written = []
    for suffix, options in _targets(name, objectives):
        with plt.style.context("default"):
            axes: Any = _plot(drawing, name)(study, **options)
            first = axes.ravel()[0] if hasattr(axes, "ravel") else axes
            figure = first.figure
            if name == HISTORY and first.get_legend() is not None:
                first.legend(loc="best")
            path = folder / f"{name}{suffix}.png"
            figure.set_size_inches(max(7, 3.2 * getattr(axes, "size", 1)), 4.2)
            figure.savefig(path, dpi=120, bbox_inches="tight")
            plt.close(figure)
        written.append(path)
    return written


def _page(names: list[str], study: Study, objectives: Sequence[str]) -> str | None:
    """Return a page with all pictures to move about in; None without plotly."""
    if find_spec("plotly") is None:
        return None
    from optuna import visualization

    parts: list[str] = []
    for name in names:
        for _, options in _targets(name, objectives):
            figure = _plot(visualization, name)(study, **options)
            parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))
    style = "<style>body{font-family:sans-serif;max-width:70rem;margin:2rem auto}</style>"
    head = f"<meta charset=utf-8><title>{html.escape(study.study_name)}</title>{style}"
    return f"<!doctype html><html lang=en>{head}<body>" + "\n".join(parts) + "</body></html>\n"


def _plot(drawing: Any, name: str) -> Callable[..., Any]:
    functions = {
        HISTORY: drawing.plot_optimization_history,
        IMPORTANCE: drawing.plot_param_importances,
        SLICES: drawing.plot_slice,
        PARETO: drawing.plot_pareto_front,
    }
    found: Callable[..., Any] = functions[name]
    return found


def _targets(name: str, objectives: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return suffix and arguments of a picture of each objective; of one objective, or of all at once, no suffix."""
    if name == PARETO:
        return [("", {"target_names": list(objectives)})]
    if len(objectives) == 1:
        return [("", {"target_name": objectives[0]})]
    return [
        (f"-{index}", {"target": lambda trial, index=index: trial.values[index], "target_name": title})
        for index, title in enumerate(objectives)
    ]
