"""Imported where tests begin: what Hydra makes of the same files and options is worked out once in a process.

Values set on the command line are applied as ever: they change neither which files are read, nor in what order.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal import config_loader_impl
from hydra._internal.defaults_list import DefaultsList

from lightkit.config.loader import ConfigLoader

ROOT = Path(__file__).resolve().parents[1]
_SHIPPED = (ROOT / "conf", ROOT / "experiments")


class _Known(NamedTuple):
    found: DefaultsList
    asked: list[str]
    tree: bytes


_list, _merge = config_loader_impl.create_defaults_list, ConfigLoader._compose_config_from_defaults_list
_known = dict[Any, _Known]()


def _listed(repo: Any, config_name: str, overrides_list: list[Any], **options: Any) -> DefaultsList:
    """Work out which files are merged, unless the same options were chosen among the same files before."""
    values = [item for item in overrides_list if isinstance(item.value(), dict) or not _is_group(repo, item)]
    chosen = [item.input_line for item in overrides_list if item not in values]
    repo.key = (config_name, *sorted(options.items()), *chosen, *map(_content, repo.get_sources()))
    known = _known.get(repo.key)
    if known is None or any(item.is_sweep_override() for item in overrides_list):
        repo.found = _list(repo, config_name, overrides_list, **options)
        return repo.found  # type: ignore[no-any-return]
    return DefaultsList(known.found.defaults, known.found.defaults_tree, values, known.found.overrides)


def _merged(self: ConfigLoader, defaults: list[Any], repo: Any) -> Any:
    """Merge the files, unless the same ones were merged before."""
    key = getattr(repo, "key", None)
    if key not in _known:
        cfg = _merge(self, defaults, repo)
        if hasattr(repo, "found"):
            _known[key] = _Known(repo.found, [*repo.asked], pickle.dumps(cfg))
        return cfg
    self.defaults, self.base, repo.asked = defaults, pickle.loads(_known[key].tree), [*_known[key].asked]
    return self.base


def _is_group(repo: Any, override: Any) -> bool:
    return bool(repo.group_exists(override.key_or_group))


def _content(source: Any) -> tuple[Any, ...]:
    """What tells that the files of a source are the same as before."""
    place = Path(source.path or ".")
    named = (source.scheme(), source.provider, str(source.path))
    if source.scheme() in ("pkg", "structured") or place in _SHIPPED or not place.is_dir():
        return named
    stats = [(str(file), file.stat()) for file in sorted(place.rglob("*")) if file.is_file()]
    return (*named, *((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats))


config_loader_impl.create_defaults_list = _listed  # type: ignore[assignment]
ConfigLoader._compose_config_from_defaults_list = _merged  # type: ignore[method-assign]
