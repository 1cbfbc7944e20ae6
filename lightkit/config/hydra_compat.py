"""What lightkit uses of Hydra beside the loader: sweeps, its application, building nodes (written for Hydra 1.3.8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, InstantiationException
from omegaconf import DictConfig

from lightkit.common.errors import UserError
from lightkit.config.loader import APP, ConfigLoader
from lightkit.config.plugins import confine


def split_sweep(loader: ConfigLoader, overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every job that Hydra's basic sweeper makes of `overrides`.

    Raises:
        ValueError: A sweep that can't be enumerated.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    try:
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
        for text, override in zip(overrides, parsed):
            if not override.is_sweep_override():
                loader.typed[f"{override.get_key_element()}={override.get_value_element_as_str()}"] = text
        jobs = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
        return [[loader.typed.get(text, text) for text in job] for job in jobs]
    except HydraException as error:
        raise ValueError(str(error)) from error


def set_hydra_config(cfg: DictConfig) -> None:
    """Make `HydraConfig.get()` answer with this configuration."""
    HydraConfig.instance().set_config(cfg)


def hydra_app(loader: ConfigLoader) -> Any:
    """Make Hydra's application object around our loader, the only one of the process."""
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    app = Hydra(task_name=APP, config_loader=loader)
    GlobalHydra.instance().initialize(app)
    return app


def native_parser() -> Any:
    """Return Hydra's own argument parser."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()


def run_multirun(
    loader: ConfigLoader, config_name: str, overrides: list[str], task: Callable[[DictConfig], Any]
) -> Any:
    """Hand a sweep to Hydra: its sweeper and launcher as configured; logging is left alone."""
    confine()
    try:
        return hydra_app(loader).multirun(
            config_name=config_name, task_function=task, overrides=overrides, with_log_configuration=False
        )
    except InstantiationException as error:
        what, fix = f"the sweeper or launcher cannot be built: {str(error).splitlines()[0]}", "see its own manual"
        raise UserError(what, key="hydra.launcher", fix=fix, family="hydra") from error


def build(config: dict[str, Any]) -> Any:
    """Build what a node names with `hydra.utils.instantiate`."""
    from hydra.utils import instantiate

    return instantiate(config)


def locate(path: str) -> Any:
    """Import the object at a dotted path."""
    from hydra._internal.utils import _locate

    return _locate(path)


def built_from(error: BaseException) -> bool:
    """Tell whether an exception is Hydra's wrapping of another one."""
    return isinstance(error, InstantiationException)


def hydra_node(cfg: DictConfig) -> DictConfig:
    """Return only Hydra's node of a composition, without its long help texts."""
    from hydra._internal.hydra import Hydra

    return Hydra.get_sanitized_hydra_cfg(cfg)
