"""Going on with a run under a configuration that may have changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern, named
from lightkit.config import from_yaml, public
from lightkit.config.origins import dotted
from lightkit.config.policy import user_only_keys

FREE = (
    "name", "profile", "extra*", "resume*", *(f"{dotted(key)}*" for key in user_only_keys()),
    "device.*", "logger.*", "checkpoint.*", "metrics.figures*",
    "trainer.epochs", "trainer.steps", "trainer.stop_at", "trainer.max_time", "trainer.validate_*",
    "trainer.early_stopping.*",
    "trainer.find_batch_size", "trainer.callbacks*", "trainer.nonfinite.*", "trainer.watch.*", "trainer.test",
    "data.batch_size", "data.eval_batch_size", "data.num_workers", "data.pin_memory", "data.persistent_workers",
    "data.prefetch_factor", "data.timeout_seconds", "data.cache",
    "ensemble.size", "ensemble.repeats", "ensemble.patience", "ensemble.vote", "ensemble.weights", "ensemble.rounds",
    "ensemble.engine", "ensemble.slots",
)  # fmt: skip
"""Keys that may change between two parts of a run: how long it is, where it computes, what it writes, and of an
ensemble how many members it has, how they are trained and what they count."""

FOLLOWING = {"metrics.monitor": ("metrics.mode", "scheduler.mode")}
"""Keys whose value follows from that of another, which are overridden with it."""


class _Missing:
    """Stands for a key that is not there."""

    def __repr__(self) -> str:
        return "not set"


MISSING = _Missing()


class KeyChange(NamedTuple):
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


def merge_configs(cfg: DictConfig, saved_text: str, override: Sequence[str]) -> tuple[DictConfig, list[KeyChange]]:
    """Merge the checkpoint's configuration with the one at hand.

    Values that would change what was learnt (rates, losses, data, seeds) stay as they were, unless they are named in
    `resume.override`; `FREE` ones come from the configuration at hand.

    Args:
        cfg: The configuration at hand.
        saved_text: The one in the checkpoint, as YAML; empty takes `cfg` as it is.
        override: Keys, or patterns of keys (`optim.*`), to take from `cfg`. One that does not differ, as on the next
            resume with the same command, changes nothing.

    Returns:
        The configuration, and what differs.

    Raises:
        UserError: There is no key of that name in either.
    """
    now = public(cfg)
    saved = from_yaml(saved_text) if saved_text else now
    known = dict.fromkeys([*_keys(saved), *_keys(now)])
    for pattern in override:
        if not any(map(Pattern(pattern, key="resume.override").covers, known)):
            raise UserError("no such key", key="resume.override", received=pattern, choices=known, family="unknown-key")
    more = [key for leader, keys in FOLLOWING.items() if named(leader, tuple(override)) for key in keys]
    changes: list[KeyChange] = []
    settled = OmegaConf.create(_merged(saved, now, (*override, *more), "", changes))
    OmegaConf.set_readonly(settled, True)
    return settled, changes


def _merged(
    saved: Mapping[str, Any], now: Mapping[str, Any], override: tuple[str, ...], prefix: str, changes: list[KeyChange]
) -> dict[str, Any]:
    """Merge the values below a key, and add what differs to `changes`."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys([*now, *saved]):
        key, before, after = f"{prefix}{name}", saved.get(name, MISSING), now.get(name, MISSING)
        if isinstance(before, dict) and isinstance(after, dict):
            merged[name] = _merged(before, after, override, f"{key}.", changes)
            continue
        chosen = after
        # Of keys that the checkpoint lacks, somebody added the arguments of a target, and whole targets. What else it
        # lacks belongs to the schema of a later lightkit than the one that wrote it.
        added = "_target_" in now or (isinstance(after, dict) and "_target_" in after)
        if before != after and (before is not MISSING or added):
            changes.append(KeyChange(key, before, after, named(key, (*FREE, *override))))
            chosen = after if changes[-1].taken else before
        if chosen is not MISSING:
            merged[name] = chosen
    return merged


def _keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
