"""Going on with a run under a configuration that may have changed since."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lightkit.common.errors import UserError
from lightkit.config import to_plain

FREE = (
    "name",
    "extra*",
    "resume*",
    "trust*",
    "device.*",
    "logger.*",
    "checkpoint.*",
    "metrics.figures*",
    "trainer.epochs",
    "trainer.steps",
    "trainer.validate_*",
    "trainer.early_stopping.*",
    "trainer.callbacks*",
    "trainer.nonfinite.*",
    "trainer.test",
    "data.batch_size",
    "data.eval_batch_size",
    "data.num_workers",
    "data.pin_memory",
    "data.persistent_workers",
    "data.prefetch_factor",
)
"""Keys that may change between two parts of a run: how long it is, where it computes, what it writes."""


class Change(NamedTuple):
    """One key that differs between the checkpoint's configuration and the one at hand."""

    key: str
    saved: Any
    now: Any
    taken: bool

    def __str__(self) -> str:
        if self.taken:
            return f"{self.key}: {self.saved!r} before, {self.now!r} from now on"
        kept = (
            f"{self.key}: the checkpoint says {self.saved!r}, the configuration {self.now!r}; the checkpoint's is kept"
        )
        return f"{kept} (take the other with resume.override=[{self.key}])"


def settle(cfg: DictConfig, saved_text: str, override: Sequence[str]) -> tuple[DictConfig, list[Change]]:
    """The configuration to go on with.

    Values that would change what was learnt (rates, losses, data, seeds) stay as they were, unless they are named in
    `resume.override`; `FREE` ones come from the configuration at hand.

    Args:
        cfg: The configuration at hand.
        saved_text: The one in the checkpoint, as YAML; empty takes `cfg` as it is.
        override: Keys, or patterns of keys (`optim.*`), to take from `cfg`.

    Returns:
        The configuration, and what differs.

    Raises:
        UserError: A key of `override` does not differ.
    """
    saved = to_plain(OmegaConf.create(saved_text)) if saved_text else to_plain(cfg)
    changes = list(_changes(saved, to_plain(cfg), tuple(override)))
    for pattern in override:
        if not any(fnmatch.fnmatch(change.key, pattern) or change.key.startswith(f"{pattern}.") for change in changes):
            names = [change.key for change in changes]
            raise UserError("nothing differs there", key="resume.override", received=pattern, choices=names)
    settled = OmegaConf.create(to_plain(cfg))
    with read_write(settled), open_dict(settled):
        for change in changes:
            if not change.taken:
                OmegaConf.update(settled, change.key, change.saved, merge=False, force_add=True)
    OmegaConf.set_readonly(settled, True)
    return settled, changes


def _changes(saved: Any, now: Any, override: tuple[str, ...], prefix: str = "") -> Iterator[Change]:
    for name in dict.fromkeys([*saved, *now]):
        key, before, after = f"{prefix}{name}", saved.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changes(before, after, override, f"{key}.")
        elif before != after:
            named = any(fnmatch.fnmatch(key, pattern) or key.startswith(f"{pattern}.") for pattern in override)
            yield Change(key, before, after, named or any(fnmatch.fnmatch(key, pattern) for pattern in FREE))
