"""What of a configuration is worth a column in TensorBoard's HParams tab, and the records that make it one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = ("checkpoint", "extra", "hydra", "logger", "name", "profile", "resume", "trust")
"""Sections that say how a run is watched and kept."""
ALWAYS = ("data", "model", "optim.lr", "seed")
"""What has a column in every run. TensorBoard shows five at first, so the rest is what somebody chose to type."""


def columns(params: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, bool | float | str]:
    """Choose the settings worth comparing: what was typed, as all that is swept is, the seed, what learns what.

    A `_target_` goes by the name of its class (`model: MLP`), an option by its own (`finetune: lora`). What is not set
    (null, an empty list) has no column.

    Args:
        params: The configuration, nested.
        overrides: What was typed on the command line (`optim.lr=0.1`, `data=wine`).
    """
    pairs = [override.lstrip("+").partition("=") for override in overrides if not override.startswith("~")]
    typed = {key.partition("@")[0]: value for key, _, value in pairs if not _below(key, HIDDEN)}
    known = flat(params)
    found = {name: known[name] for name in (*typed, *ALWAYS) if name in known}
    options = {name for name in typed if isinstance(params.get(name), Mapping) or name == "experiment"}
    return found | {name: typed[name] for name in typed if name in options and name not in known}


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Flatten settings to dotted names; lists become text, as HParams knows only numbers, flags and text.

    Args:
        params: Settings, nested mappings allowed.
        prefix: Start of every name.
    """
    found: dict[str, bool | float | str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is None or (isinstance(value, list | tuple) and not value):
            continue
        elif name == "_target_" and prefix:
            found[prefix.removesuffix(".").removesuffix(".dataset")] = str(value).rpartition(".")[2]
        else:
            is_plain = isinstance(value, bool | str) or (isinstance(value, int | float) and math.isfinite(value))
            found[f"{prefix}{name}"] = value if is_plain else str(value)
    return found


def records(params: Mapping[str, bool | float | str]) -> list[Any]:
    """Make the summaries that open and close a session.

    There is no summary of the experiment on purpose: TensorBoard takes the first it finds for all runs, and so hides
    what only other runs have. Without one it makes a column of everything, those first in which the runs differ, and
    one of every curve.

    Args:
        params: Settings by name.
    """
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo()
    for name, value in params.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        setattr(start.hparams[name], f"{kind}_value", value)
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS)
    return [
        _summary(metadata.SESSION_START_INFO_TAG, session_start_info=start),
        _summary(metadata.SESSION_END_INFO_TAG, session_end_info=end),
    ]


def _summary(tag: str, **content: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content)
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString())
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])


def _below(name: str, keys: Sequence[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)
