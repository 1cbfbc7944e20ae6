"""A sweep whose jobs Optuna chooses: what its journal keeps of it, and the search that follows from that."""

from __future__ import annotations

import html
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import Composed, to_yaml
from lightkit.config.compose import compose_with
from lightkit.config.hydra_settings import job_environment
from lightkit.config.instantiate import instantiate
from lightkit.config.loader import make_loader
from lightkit.config.native import replicates
from lightkit.processes.files import write_whole
from lightkit.sweep.job import Job, JobSearch, check_folder
from lightkit.sweep.journal import Record
from lightkit.sweep.plan import is_of_sweep
from lightkit.sweep.replicates import Replicated, whole_job
from lightkit.sweep.space import KEY, Space, read_settings, read_space

if TYPE_CHECKING:
    from optuna.study import Study

    from lightkit.sweep.suggesting import OptunaSearch, Suggest


def describe_study(
    composed: Composed, overrides: Sequence[str], *, config_dir: str | None, config_name: str
) -> dict[str, Any]:
    """Return what has to be known to go on with a study, and check it.

    Args:
        composed: One of the jobs that could be.
        overrides: As typed.
        config_dir: One more folder of options.
        config_name: File to start from.

    Raises:
        UserError: A setting of the sweeper that cannot be.
    """
    assert composed.hydra_cfg is not None
    cfg = composed.cfg
    node: Any = OmegaConf.to_container(composed.hydra_cfg.hydra.sweeper)
    facts = {"monitor": cfg.metrics.monitor, "mode": cfg.metrics.mode, "seed": cfg.seed, "name": str(cfg.name)}
    study = {
        "sweeper": node,
        "facts": facts,
        "overrides": [text for text in overrides if not is_of_sweep(text) and not text.startswith("hydra/")],
        "config_dir": config_dir,
        "config_name": config_name,
        "environment": job_environment(composed.hydra_cfg),
    }
    settings, space = read_settings(node, **facts), _space(study)
    if not space.varied and not node.get("custom_search_space"):
        what = "there is nothing to choose: all trials would be the same"
        fix = "'optim.lr=tag(log,interval(1e-4,1e-1))'"
        raise UserError(what, key="hydra/sweeper", received="optuna, without a key that varies", fix=fix)
    from lightkit.sweep.samplers import check_settings

    check_settings(space, settings)
    return study


def build_study(
    study: Mapping[str, Any], record: Record, over: Mapping[str, list[int]], jobs: dict[str, list[Job]]
) -> OptunaSearch:
    """Build the search of a study, which goes on with what it has.

    Args:
        study: As `describe_study` returned it.
        record: What the journal of the sweep says.
        over: Replicates of each trial.
        jobs: Gets these replicates, by the name of the trial's job.

    Raises:
        UserError: A sampler, pruner, space or storage that cannot be.
    """
    node = study["sweeper"]
    settings = read_settings(node, **study["facts"])
    from lightkit.sweep.suggesting import OptunaSearch

    loader = make_loader(study["overrides"], config_dir=study["config_dir"], config_name=study["config_name"])
    space = _space(study)

    def make_job(name: str, overrides: Sequence[str]) -> Job:
        folder = record.place(name)
        check_folder(folder)
        composed = compose_with(loader, overrides)
        return Job(name, folder, tuple(overrides), to_yaml(composed.cfg), study.get("environment") or {})

    def make_trial(name: str, overrides: Sequence[str]) -> Job:
        parts = {f"{name},{own}": [*overrides, *texts] for own, texts in replicates(over).items()}
        jobs[name] = [record.jobs.get(part) or make_job(part, texts) for part, texts in parts.items()]
        return whole_job(jobs[name][0], over)

    suggest: Suggest | None = None
    if node.get("custom_search_space"):
        base = compose_with(loader, space.fixed)
        suggest = _suggesting(node["custom_search_space"], base)
    make = make_trial if over else make_job
    return OptunaSearch(space, make, record.folder, settings, suggest=suggest, known=record.jobs)


def show_study(search: JobSearch, folder: Path) -> Iterator[str]:
    """Draw the pictures of a study, and yield lines about its best trials.

    Args:
        search: What `build_study` returned.
        folder: Folder of the sweep.
    """
    from lightkit.sweep.suggesting import OptunaSearch

    search = search.search if isinstance(search, Replicated) else search
    assert isinstance(search, OptunaSearch)
    names = search.objectives
    for trial in search.best():
        values = ", ".join(f"{name} {value:.5g}" for name, value in zip(names, trial.values or ()))
        yield f"best: {trial.user_attrs.get('job', trial.number)}  {values}"
    if write_plots(search.study, folder / run_files.SWEEP_PICTURES, names):
        yield f"pictures of the study are in {folder / run_files.SWEEP_PICTURES}"


def _space(study: Mapping[str, Any]) -> Space:
    """Return what varies in a study: what was typed, over what stands in `hydra.sweeper.params`."""
    loader = make_loader(study["overrides"], config_dir=study["config_dir"], config_name=study["config_name"])
    typed = [loader.parse(text) for text in study["overrides"]]
    keys = {override.get_key_element() for override in typed}
    given = ((key, value) for key, value in (study["sweeper"].get("params") or {}).items() if key not in keys)
    return read_space([*(loader.parse(f"{key}={value}") for key, value in given), *typed])


def _suggesting(path: str, base: Composed) -> Suggest:
    """Return the user's function that suggests values; it may take the configuration before the trial.

    Raises:
        UserError: There is no such function, or it may not be called.
    """
    key = f"{KEY}.custom_search_space"
    node = OmegaConf.create({"node": {"_target_": path, "_partial_": True}, "trust": list(base.cfg.trust)}).node
    function = instantiate(node, key=key)
    found: Any = getattr(function, "func", function)
    takes_both = len(inspect.signature(found).parameters) > 1
    return partial(found, base.cfg) if takes_both else found


HISTORY, IMPORTANCE, SLICES, PARETO = "history", "importance", "slice", "pareto"
_PLOTS = {HISTORY: "plot_optimization_history", IMPORTANCE: "plot_param_importances"}
_PLOTS |= {SLICES: "plot_slice", PARETO: "plot_pareto_front"}
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
        write_whole(folder / PAGE, page, forced=True)
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
            axes: Any = getattr(drawing, _PLOTS[name])(study, **options)
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
            figure = getattr(visualization, _PLOTS[name])(study, **options)
            parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))
    style = "<style>body{font-family:sans-serif;max-width:70rem;margin:2rem auto}</style>"
    head = f"<meta charset=utf-8><title>{html.escape(study.study_name)}</title>{style}"
    return f"<!doctype html><html lang=en>{head}<body>" + "\n".join(parts) + "</body></html>\n"


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
