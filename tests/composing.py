"""Imported where tests begin: what Hydra makes of the same files and options is worked out once by all the processes.

Values set on the command line are applied as ever: they change neither which files are read, nor in what order.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.defaults_list import DefaultsList
from omegaconf import DictConfig, OmegaConf

from lightkit.config.loader import ConfigLoader
from tests.warm import SHARED

ROOT = Path(__file__).resolve().parents[1]
_SHIPPED = (ROOT / "conf", ROOT / "experiments")


class _Known(NamedTuple):
    found: DefaultsList
    asked: list[str]
    tree: bytes


_list, _merge = config_loader_impl.create_defaults_list, ConfigLoader._compose_config_from_defaults_list
_map, _NOTHING = defaults_list._create_interpolation_map, OmegaConf.create()
_known = dict[Any, _Known]()
_shared = Path(os.environ.get(SHARED, os.devnull))


def _listed(repo: Any, config_name: str, overrides_list: list[Any], **options: Any) -> DefaultsList:
    """Work out which files are merged, unless the same options were chosen among the same files before."""
    values = [item for item in overrides_list if isinstance(item.value(), dict) or not _is_group(repo, item)]
    chosen = [item.input_line for item in overrides_list if item not in values]
    repo.key = (config_name, *sorted(options.items()), *chosen, *filter(None, map(_content, repo.get_sources())))
    known = _find(repo.key)
    if known is None or any(item.is_sweep_override() for item in overrides_list):
        repo.found = _list(repo, config_name, overrides_list, **options)
        return repo.found  # type: ignore[no-any-return]
    return DefaultsList(known.found.defaults, known.found.defaults_tree, values, known.found.overrides)


def _merged(self: ConfigLoader, defaults: list[Any], repo: Any) -> Any:
    """Merge the files, unless the same ones were merged before; what is typed for a sweeper is added to them."""
    key = getattr(repo, "key", None)
    if key in _known and not self._params:
        self.defaults, self.base, repo.asked = defaults, pickle.loads(_known[key].tree), [*_known[key].asked]
        return self.base
    cfg = _merge(self, defaults, repo)
    if hasattr(repo, "found") and not self._params:
        with suppress(pickle.PicklingError):  # for each job of joblib, Hydra makes the classes of its plugins anew
            _keep(key, _Known(repo.found, [*repo.asked], pickle.dumps(cfg)))
    return cfg


def _find(key: Any) -> _Known | None:
    """What this process has worked out before, or another one."""
    if key not in _known and (file := _shared / _digest(key)).exists():
        _known[key] = pickle.loads(file.read_bytes())
    return _known.get(key)


def _keep(key: Any, known: _Known) -> None:
    _known[key] = known
    if _shared.is_dir():  # a process may outlive the tests
        begun = _shared / f"{os.getpid()}.tmp"
        with suppress(OSError):  # a test may leave no room
            begun.write_bytes(pickle.dumps(known))
            begun.replace(_shared / _digest(key))


def _digest(key: Any) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()


def _is_group(repo: Any, override: Any) -> bool:
    return bool(repo.group_exists(override.key_or_group))


def _content(source: Any) -> tuple[Any, ...] | None:
    """What tells that the files of a source are the same as before, in whatever folder; None where there are none."""
    place = Path(source.path or ".")
    named = (source.scheme(), source.provider)
    if source.scheme() in ("pkg", "structured") or place in _SHIPPED or not place.is_dir():
        return (*named, str(source.path))
    found = [(str(path.relative_to(place)), _text(path)) for path in sorted(place.rglob("*"))]
    return (*named, *found) if found else None


def _text(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _mapped(overrides: Any, defaults: list[Any], self_added: bool) -> DictConfig:
    """Write the choices as a node only where one of the defaults refers to it."""
    return _map(overrides, defaults, self_added) if any(item.is_interpolation() for item in defaults) else _NOTHING


config_loader_impl.create_defaults_list = _listed  # type: ignore[assignment]
ConfigLoader._compose_config_from_defaults_list = _merged  # type: ignore[method-assign]
defaults_list._create_interpolation_map = _mapped
