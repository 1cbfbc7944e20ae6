"""What of a configuration is worth a column in TensorBoard's HParams tab, and the records that make it one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = ("checkpoint", "extra", "logger", "name", "profile", "resume", "trust")
"""Sections that say how a run is watched and kept."""
TYPED = (
    "device", "metrics", "trainer.nonfinite", "trainer.task", "trainer.test", "trainer.validate_every",
    "trainer.validate_unit", "data.eval_batch_size", "data.num_workers", "data.persistent_workers", "data.pin_memory",
    "data.prefetch_factor",
)  # fmt: skip
"""What hardly changes what is learnt; of these only what was typed has a column."""


def columns(params: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, bool | float | str]:
    """The settings worth comparing: those that were typed and those that decide what is learnt.

    A `_target_` goes by the name of its class (`model: MLP`). What is not set (null, an empty list) has no column.

    Args:
        params: The configuration, nested.
        overrides: What was typed on the command line (`optim.lr=0.1`, `data=wine`).
    """
    typed = {_key(text) for text in overrides}
    told = {name: value for name, value in flat(params).items() if not _below(name, HIDDEN)}
    return {name: value for name, value in told.items() if name in typed or not _below(name, TYPED)}


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Nested settings with dotted names. HParams knows only numbers, flags and text, so lists become text.

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
            found[f"{prefix}{name}"] = value if _is_plain(value) else str(value)
    return found


def records(params: Mapping[str, bool | float | str]) -> list[Any]:
    """The summaries that open and close a session.

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


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | str) or (isinstance(value, int | float) and math.isfinite(value))


def _key(override: str) -> str:
    """`++model.hidden=[64]` → `model.hidden`, `loss@_global_.loss=mse` → `loss`."""
    return re.split("[=@]", override.lstrip("+~"), maxsplit=1)[0]


def _below(name: str, keys: Sequence[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)
