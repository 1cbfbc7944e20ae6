"""What Hydra does by itself: sweeps with its sweepers and launchers, completion, and its views of the composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

import lightkit.config as config
from lightkit.common import run_files
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.text import slug
from lightkit.config.doors import is_unnamed
from lightkit.config.loader import (
    COMPOSE_ERRORS,
    ConfigLoader,
    HydraConfig,
    hydra_app,
    is_param,
    make_loader,
    native_parser,
    run_multirun,
    split_sweep,
)
from lightkit.config.overrides import Rewritten, rewrite
from lightkit.config.project import project_root

_SWEEP_TARGET = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_OF_HYDRA = ("hydra.", "hydra/")
"""How overrides of Hydra's own settings and options begin."""
Task = Callable[[DictConfig], "float | None"]


def compose_jobs(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    config_name: str = "config",
    project: Path | None = None,
) -> list[config.Composed]:
    """Compose and check every run of a sweep before any of them starts.

    For Hydra's basic sweeper this is the whole grid (`a=1,2 b=range(0,3)` and what `hydra.sweeper.params` adds). Other
    sweepers choose values as they go: of those every single value, and both ends of every interval, is tried once.

    Raises:
        UserErrors: Everything that is wrong with any of them, in one report.
    """
    loader = make_loader(overrides, config_dir=config_dir, config_name=config_name, project=project)
    return _jobs(loader, overrides)[0]


def _jobs(loader: ConfigLoader, overrides: Sequence[str]) -> tuple[list[config.Composed], Rewritten]:
    checked = rewrite(loader, overrides, sweep=True)
    errors, composed = list(checked.errors), list[config.Composed]()
    for number, job in enumerate(_job_overrides(loader, checked.texts, errors)):
        try:
            composed += compose_replicates(partial(config.compose_with, loader, sweep=True, number=number), job)
        except UserErrors as found:
            errors += found.errors
    if errors:
        raise UserErrors({(error.key, error.what, error.origin): error for error in errors}.values())
    _need_named(composed[0])
    return composed, checked


def compose_replicates(compose: Callable[[list[str]], config.Composed], overrides: list[str]) -> list[config.Composed]:
    """Compose a job, or each of its replicates where its `sweep.over` asks for some.

    Args:
        compose: Composes and checks a configuration from overrides.
        overrides: Those of the job.

    Raises:
        UserErrors: A replicate is wrong, or its value is typed as well.
    """
    plain = compose(overrides)
    over, typed = plain.sweep["over"], [text.lstrip("+~").partition("=")[0] for text in overrides]
    if not over:
        return [plain]
    what, fix = "replicates have values of their own for this key", "leave it out here, or in sweep.over"
    twice = [UserError(what, key=key, received=text, fix=fix) for key, text in zip(typed, overrides) if key in over]
    if twice:
        raise UserErrors(twice)
    return [replace(compose([*overrides, *texts]), replicate=texts) for texts in replicates(over).values()]


def replicates(over: Mapping[str, Sequence[int]]) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each replicate of a job by its name: one for each combination of `sweep.over`."""
    combined = (tuple(f"{key}={value}" for key, value in zip(over, values)) for values in product(*over.values()))
    return {slug(",".join(texts)): texts for texts in combined}


def is_multirun(overrides: Sequence[str], *, config_dir: str | None = None, config_name: str = "config") -> bool:
    """Tell whether `hydra.mode`, typed or in a file, asks for a sweep; no where it cannot be composed."""
    loader = make_loader(overrides, config_dir=config_dir, config_name=config_name)
    try:
        texts = rewrite(loader, overrides, sweep=True).texts
        mode = loader.compose([text for text in texts if not loader.parse(text).is_sweep_override()]).hydra.mode
    except (*COMPOSE_ERRORS, YAMLError):
        return False
    return mode is not None and str(mode.name) == "MULTIRUN"


def _job_overrides(loader: ConfigLoader, texts: list[str], errors: list[UserError]) -> list[list[str]]:
    """Return the overrides of every job; what a sweeper adds is not theirs."""
    fixed = [text for text in texts if is_param(loader.parse(text)) or not loader.parse(text).is_sweep_override()]
    texts = [text for text in texts if not is_param(loader.parse(text))]
    try:
        sweeper = loader.compose(fixed).hydra.sweeper
    except (*COMPOSE_ERRORS, YAMLError):
        # What is wrong shows again, and is put better, when the job itself is composed.
        return [[text for text in fixed if text in texts]]
    try:
        is_basic = isinstance(sweeper, DictConfig) and sweeper.get("_target_") == _SWEEP_TARGET
        added = (sweeper.get("params") or {}).items() if is_basic else ()
        more = rewrite(loader, [f"{key}={value}" for key, value in added], sweep=True)
        texts = [*more.texts, *texts]
        errors += [*more.errors, *_empty(loader, texts)]
        return split_sweep(loader, texts) if is_basic else one_by_one(loader, texts)
    except ValueError as error:
        errors.append(UserError(f"this sweep can't be laid out: {error}", family="unreadable-configuration"))
        return []


def _empty(loader: ConfigLoader, texts: Sequence[str]) -> list[UserError]:
    """Return what is wrong with sweeps of no value, such as `seed=range(0)`, which would make no job."""
    found = list[UserError]()
    for text in texts:
        override = loader.parse(text)
        if override.is_discrete_sweep() and next(iter(override.sweep_string_iterator()), None) is None:
            key = override.get_key_element()
            what, fix = "a sweep without any value makes no job", f"{key}=range(0,3) for 0, 1 and 2, or {key}=0,1,2"
            received = text.partition("=")[2]
            found.append(UserError(what, key=key, expected="at least one value", received=received, fix=fix))
    return found


def one_by_one(loader: ConfigLoader, overrides: Sequence[str]) -> list[list[str]]:
    """Make jobs that show every value of every sweep once, the others at their first value."""
    axes = []
    for text in overrides:
        override = loader.parse(text)
        key = override.get_key_element()
        if not override.is_sweep_override():
            axes.append([text])
        elif override.is_discrete_sweep():
            axes.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            bounds = (getattr(override.value(), name, None) for name in ("start", "end"))
            axes.append([f"{key}={bound}" for bound in bounds if bound is not None])
    first = [values[0] for values in axes if values]
    jobs = [first]
    for position, values in enumerate(axes):
        jobs += [[*first[:position], value, *first[position + 1 :]] for value in values[1:]]
    return jobs


def run_hydra(
    overrides: Sequence[str],
    task: Task,
    *,
    config_dir: str | None = None,
    config_name: str = "config",
    sweep_dir: Path | None = None,
    names: Sequence[str] = (),
) -> Any:
    """Sweep with Hydra's own sweeper and launcher (joblib, submitit, ...), after every job was checked.

    Args:
        overrides: As typed, with sweeps.
        task: Gets the complete, read-only configuration of each job, whose folder is
            `HydraConfig.get().runtime.output_dir`.
        config_dir: One more folder of options.
        config_name: File to start from.
        sweep_dir: Folder of the sweep; by default `outputs/sweeps/<date>/<time>-<name>` below the project.
        names: Folder of each job in it, where the sweeper is Hydra's basic one, which runs every combination.

    Returns:
        What Hydra's sweeper returns.

    Raises:
        UserErrors: Any job is wrong; none was started.
    """
    loader = make_loader(overrides, config_dir=config_dir, config_name=config_name)
    jobs, checked = _jobs(loader, overrides)
    if any(job.cfg.ensemble.get("members") for job in jobs):  # Hydra hands a job what it composed itself
        what, fix = "unlike members need the plain sweep", "leave hydra/launcher and hydra/sweeper out"
        raise UserError(what, key="ensemble.members", fix=fix, family="hydra")
    if jobs[0].replicate:
        what, fix = "replicates need the plain sweep, or hydra/sweeper=optuna alone", "leave the others out"
        raise UserError(what, key="sweep.over", fix=fix, family="hydra")
    settings = _sweep_settings(overrides, jobs, sweep_dir, loader.time)
    texts = checked.texts
    if sweep_dir is not None:
        texts = [text for text in texts if not text.startswith("hydra.sweep.dir=")]
    is_grid = jobs[0].choices.get("hydra/sweeper") in ("basic", None)
    for job, name in zip(jobs, names if is_grid else ()):
        loader.subdirs[tuple(text for text in job.overrides if not text.startswith(_OF_HYDRA))] = name
    typed = [text for text in overrides if text.lstrip("+~").startswith(_OF_HYDRA)]
    typed = [text for text in typed if not is_param(loader.parse(text))]
    runs = _Job(task, tuple(typed), config_dir, config_name, loader.time)
    return run_multirun(loader, [*settings, *texts], runs)


def _sweep_settings(
    overrides: Sequence[str], jobs: Sequence[config.Composed], folder: Path | None, time: datetime
) -> list[str]:
    """Return settings of Hydra's for a sweep, but for those that the user has made.

    The working directory stays, nothing is logged twice, and the jobs are in one folder below the project.

    Args:
        overrides: As typed.
        jobs: What they compose to.
        folder: Folder of the sweep, whatever the user has set; None where that counts.
        time: When the sweep began.
    """
    own = {text.lstrip("+~").partition("=")[0] for text in overrides}
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null", "hydra.job.chdir=false"]
    settings = [text for text in quiet if text.partition("=")[0] not in own]
    if folder is None:
        in_file = any(job.sources.exact(("hydra", "sweep", "dir")) is not None for job in jobs)
        if in_file or "hydra.sweep.dir" in own:
            return settings
    root = (project_root() or Path.cwd()) / run_files.OUTPUTS / run_files.SWEEPS
    dated = f"{root}/{time:%Y-%m-%d}/{time:%H-%M-%S}-{slug(str(jobs[0].cfg.name))}"
    return [*settings, f"hydra.sweep.dir='{dated if folder is None else folder}'"]


def job_overrides() -> list[str]:
    """Return the overrides of the job that Hydra runs now, as they were typed: nothing in them is looked up."""
    texts: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return [str(text) for text in texts]


@dataclass(frozen=True)
class _Job:
    """What one of Hydra's launchers calls for each job, in whatever process: it composes the job as we do."""

    task: Task
    typed: tuple[str, ...]
    config_dir: str | None
    config_name: str
    time: datetime

    def __call__(self, _: DictConfig) -> float | None:
        from lightkit.config.saved import with_values_of

        node, instance = HydraConfig.get(), HydraConfig.instance()
        before, overrides = instance.cfg, [*self.typed, *job_overrides()]
        loader = make_loader(overrides, config_dir=self.config_dir, config_name=self.config_name)
        loader.time = self.time
        job = config.compose_with(loader, overrides, sweep=True, number=node.job.num)
        instance.cfg = before
        goes_on = job.cfg.resume.mode == "auto"
        folder = Path(node.runtime.output_dir)
        return self.task(with_values_of(folder, job.cfg, job.dated) if goes_on else job.cfg)


def _need_named(job: config.Composed) -> None:
    """Refuse a sweeper or launcher of the project that was chosen and not named: Hydra would not find it."""
    node = job.hydra_cfg.hydra if job.hydra_cfg is not None else {}
    for kind in ("sweeper", "launcher"):
        target = str((node.get(kind) or {}).get("_target_"))
        if is_unnamed(target):
            what, module = "a plugin of the project runs only when you name it", target.rpartition(".")[0]
            fix = f"trust=[{', '.join([*job.cfg.trust, module])}] on the command line"
            raise UserError(what, key=f"hydra/{kind}", received=target, fix=fix, family="target-not-trusted")


def hydra_command(args: Sequence[str]) -> None:
    """Run shell completion, `--hydra-help` and `--info`, printed by Hydra, which sets up logging for it.

    Args:
        args: Everything after `lightkit train`.

    Raises:
        UserError: Hydra could not do it.
    """
    parser = native_parser()
    options, _ = parser.parse_known_args(list(args))
    name = options.config_name or "config"
    loader = make_loader(options.overrides, config_dir=options.config_dir, config_name=name)
    checked = rewrite(loader, options.overrides if options.info else ())
    if checked.errors:
        raise UserErrors(checked.errors)
    app = hydra_app(loader)
    try:
        if options.shell_completion:
            app.shell_completion(config_name=name, overrides=options.overrides)
        elif options.hydra_help:
            app.hydra_help(config_name=name, args_parser=parser, args=options)
        else:
            app.show_info(options.info, config_name=name, overrides=checked.texts)
    except (UserError, BrokenPipeError):
        raise
    except COMPOSE_ERRORS as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"Hydra: {what}", family="hydra") from error
