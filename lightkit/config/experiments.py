"""Experiments as a configuration group: `experiments/**/*.yaml` answers to `experiment=NAME`."""

from __future__ import annotations

from pathlib import Path

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

Names = list[str]  # inside the class below, `list` is a method
GROUP = "experiment"
SCHEME = "experiments"


def find_experiment(root: Path, name: str) -> Path | None:
    """Find the file of an experiment: `a` is `a.yaml` or `a/a.yaml`, `a/b` is `a/b.yaml`."""
    parts = [part for part in name.removesuffix(".yaml").split("/") if part]
    if not parts or any(part.startswith(".") for part in parts):
        return None
    plain = root.joinpath(*parts[:-1], f"{parts[-1]}.yaml")
    own_folder = root.joinpath(*parts, f"{parts[-1]}.yaml")
    return next((path for path in (plain, own_folder) if path.is_file()), None)


def experiment_names(root: Path) -> dict[str, Path]:
    """List every experiment below a folder, by the name to choose it with."""
    names = {}
    for path in sorted(root.rglob("*.yaml")) if root.is_dir() else []:
        parts = path.relative_to(root).with_suffix("").parts
        if any(part.startswith((".", "_")) for part in parts):
            continue
        short = parts[:-1] if len(parts) > 1 and parts[-1] == parts[-2] else parts
        names["/".join(short)] = path
    return names


class ExperimentSource(ConfigSource):
    """Shows a folder of experiments to Hydra as the group `experiment`, with `_global_` as the package of its files."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of the source in Hydra's search path."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one experiment."""
        path = self._file(config_path)
        if path is None:
            raise ConfigLoadError(f"Config not found : {config_path}")
        header = ConfigSource._get_header_dict(path.read_text(encoding="utf-8")[:512])
        header["package"] = header["package"] or "_global_"
        config = OmegaConf.load(path)
        return ConfigResult(config=config, path=str(path), provider=self.provider, header=header)

    def available(self) -> bool:
        """Tell whether the folder is there."""
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        """Tell whether a name is `experiment`, or a folder of it with more than the experiment of its own name."""
        inner = self._inner(config_path)
        return inner is not None and any(self._below(inner))

    def is_config(self, config_path: str) -> bool:
        """Tell whether there is such an experiment."""
        return self._file(config_path) is not None

    def file_of(self, config_path: str) -> Path | None:
        """Return the file of an experiment, by its name in the search path."""
        return self._file(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        """List the experiments or folders directly inside a folder."""
        if config_path == "":
            return [GROUP] if results_filter in (None, ObjectType.GROUP) and self.is_group(GROUP) else []
        inner = self._inner(config_path)
        below = self._below(inner) if inner is not None else []
        groups = {name.partition("/")[0] for name in below if "/" in name}
        configs = {name for name in below if "/" not in name}
        wanted = (groups if results_filter != ObjectType.CONFIG else set()) | (
            configs if results_filter != ObjectType.GROUP else set()
        )
        return sorted(wanted)

    def _inner(self, config_path: str) -> str | None:
        head, _, inner = config_path.strip("/").partition("/")
        return inner if head == GROUP else None

    def _file(self, config_path: str) -> Path | None:
        inner = self._inner(config_path)
        return find_experiment(Path(self.path), inner) if inner else None

    def _below(self, inner: str) -> Names:
        prefix = f"{inner}/" if inner else ""
        return [name[len(prefix) :] for name in experiment_names(Path(self.path)) if name.startswith(prefix)]
