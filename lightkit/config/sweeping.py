"""What a sweep tries: the values that are typed for a sweeper of Hydra's, and jobs that show each value once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

if TYPE_CHECKING:
    from lightkit.config.loader import ConfigLoader

PARAMS = "hydra.sweeper.params"


def job_overrides() -> list[str]:
    """Return the overrides of the job that Hydra runs now, as they were typed: nothing in them is looked up."""
    texts: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return [str(text) for text in texts]


def is_param(override: Override) -> bool:
    """Tell whether an override adds to what a sweeper tries: `hydra.sweeper.params.KEY=VALUES`."""
    return f"{override.key_or_group}.".startswith(f"{PARAMS}.") and not override.is_delete()


def params_of(override: Override) -> Iterator[tuple[str, str]]:
    """Yield each key that an override gives a sweeper, and its values as they are typed."""
    key, value = override.key_or_group[len(PARAMS) + 1 :], override.value()
    if not key:
        yield from ((str(name), str(item)) for name, item in (value if isinstance(value, dict) else {}).items())
    else:
        typed = override.input_line.partition("=")[2] if override.input_line else ""
        yield key, value if isinstance(value, str) else typed


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
