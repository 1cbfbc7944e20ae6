"""`trainer.find_batch_size`: the largest batch that fits, found out in a process of its own before the run begins.

Nothing of the run is touched by it: no random number is drawn, no memory is used, no CUDA context is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import FAILED, OUT_OF_MEMORY, UserError
from lightkit.common.strategies import strategy_of
from lightkit.config import to_yaml, with_values
from lightkit.device.ranks import Ranks
from lightkit.diagnostics.memory import Probe, Search, in_gib, parts, steps_up_to
from lightkit.runner.bench import KEY, BenchProcess

_SCALING_ROWS = 256
"""Training rows that the scaling is fitted on to measure with: what it is exactly does not matter there."""


@dataclass(frozen=True)
class Batch:
    """What was found."""

    size: int
    """For `data.batch_size`."""
    accumulate: int
    """For `trainer.accumulate`."""
    lines: tuple[str, ...] = ()
    """How it was found, for people."""
    probes: tuple[Probe, ...] = ()
    """What was measured at each size that was tried."""
    limit: int = 0
    """Bytes that may be used."""
    free: int = 0
    """Bytes that are free; a share of them is left alone."""

    def settings(self) -> dict[str, Any]:
        """Return the values of the configuration, with which nothing is left to be found."""
        return {KEY: None, "data.batch_size": self.size, "trainer.accumulate": self.accumulate}


def resolve_batch_size(
    cfg: DictConfig, ranks: Ranks, tell: Callable[[str], None] = lambda line: None
) -> tuple[DictConfig, tuple[str, ...]]:
    """Return the configuration with numbers in the place of `trainer.find_batch_size`, and lines about them.

    Args:
        cfg: The configuration.
        ranks: The processes of the run; the first one searches for all.
        tell: Called with a line before the search, which may take a while, and with one for each size that was tried.

    Raises:
        UserError: Nothing fits (exit code 4), or a training step fails.
    """
    if cfg.trainer.get("find_batch_size") is None:
        return cfg, ()

    def search() -> Batch:
        tell(f"batch   looking for the largest that fits ({KEY}={cfg.trainer.find_batch_size})")
        return find_batch(cfg, ranks=ranks.size, tell=tell)

    batch = ranks.shared(search)
    return with_values(cfg, batch.settings()), batch.lines


def keep_resolved_batch_size(cfg: DictConfig, saved_text: str) -> DictConfig:
    """Return the configuration to resume with: what was found when the run began stays.

    Args:
        cfg: The configuration at hand.
        saved_text: That of the checkpoint, as YAML.
    """
    if cfg.trainer.get("find_batch_size") is None or not saved_text:
        return cfg
    saved: Any = OmegaConf.create(saved_text)
    return with_values(cfg, Batch(saved.data.batch_size, saved.trainer.accumulate).settings())


def find_batch(
    cfg: DictConfig, *, ranks: int = 1, limit: int | None = None, tell: Callable[[str], None] = lambda line: None
) -> Batch:
    """Search for what `trainer.find_batch_size` asks for.

    Args:
        cfg: The configuration.
        ranks: Processes of the run, which share every batch.
        limit: Bytes that may be used; None takes what is free.
        tell: Called with a line for each size that was tried.

    Raises:
        UserError: Not even the smallest batch fits (exit code 4), or a training step fails.
    """
    refusal = strategy_of(cfg.device.parallel).refuses.get("batch_size")
    if refusal is not None and ranks > 1:
        raise UserError(refusal.what, key=KEY, received=cfg.trainer.find_batch_size, fix=refusal.fix)
    asked = Asked(cfg, ranks)
    search: Search | None = None
    reason = ""
    while search is None or search.next() is not None:
        with BenchProcess(asked.job(limit)) as child:
            facts = child.answer()
            if search is None:
                if facts["limit"] is None:
                    raise UserError("this system does not tell how much memory is free", key=KEY, fix=f"{KEY}=null")
                search, first = Search(asked.sizes(facts), facts["limit"], bold=facts["bold"]), facts
            reason = _go_on(search, child, asked, tell) or reason
    best = search.best
    if best is None:
        least = min(search.probes, key=lambda probe: probe.size)
        samples = f"{least.size} sample{'' if least.size == 1 else 's'}"
        if least.peak is not None:
            needs = f"needs {in_gib(least.peak)}, of which {in_gib(least.fixed)} do not depend on the batch"
            reason = f"a training step on {samples} {needs}; {in_gib(search.limit)} may be used"
        what = "no batch fits into memory" + (f"\n{reason}" if reason else "")
        fix = "device.activation_checkpointing, device.precision=bf16, a smaller model, or more memory"
        raise UserError(what, key=KEY, fix=fix, exit_code=OUT_OF_MEMORY)
    batch = asked.batch(search, best, first)
    return replace(batch, probes=tuple(search.probes), limit=search.limit, free=first["free"])


def _go_on(search: Search, child: BenchProcess, asked: Asked, tell: Callable[[str], None]) -> str:
    """Measure in a process until the answer is known, or memory runs out; returns what it said then."""
    while (size := search.next()) is not None:
        got = child.ask(size=size, window=asked.window(size))
        failed = "error" in got and "peak" not in got  # whatever its size
        if failed and size > 1:
            if got.get("exit_code", FAILED) != FAILED:
                raise UserError(got["error"], exit_code=got["exit_code"], family=got.get("family"))
            fix = f"{KEY}=null shows where"
            raise UserError(f"a training step fails: {got['error']}", key=KEY, fix=fix, exit_code=FAILED)
        if failed:
            got = {"size": size, "peak": None}  # a single sample is an error in batch norm
        search.add(Probe(size, got["peak"], got.get("fixed", 0)))
        needs = "does not fit" if got["peak"] is None else f"needs {in_gib(got['peak'])} of {in_gib(search.limit)}"
        tell(f"        {size} sample{'' if size == 1 else 's'}: {needs}")
        if got["peak"] is None:
            return str(got.get("error", ""))
    return ""


class Asked:
    """What a configuration asks for.

    Args:
        cfg: The configuration.
        ranks: Processes of the run.
    """

    def __init__(self, cfg: DictConfig, ranks: int = 1) -> None:
        self.cfg, self.ranks = cfg, ranks
        self.largest = cfg.trainer.find_batch_size == "max"
        self.effective = int(cfg.data.batch_size) * int(cfg.trainer.accumulate)

    def job(self, limit: int | None) -> str:
        """Write down what the process that measures has to know, in one line."""
        rows = min(self.cfg.data.get("normalize_rows") or _SCALING_ROWS, _SCALING_ROWS)
        alone: dict[str, Any] = {KEY: None, "device.nproc": 1, "data.normalize_rows": rows}
        if self.ranks > 1:  # it sees the GPUs that this process was shown, and computes on the first of them
            alone |= {"device.parallel": "none", "device.gpus": None}
        sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.ranks > 1 else 1
        options = {"ranks": self.ranks, "sharing": sharing, "limit": limit}
        return json.dumps({"cfg": to_yaml(with_values(self.cfg, alone)), "options": options})

    def sizes(self, facts: dict[str, Any]) -> list[int]:
        """Return the sizes to choose from.

        With `data.drop_last` only those that leave out the same samples as the batch that was asked for.
        """
        rows, given = int(facts["rows"]), int(self.cfg.data.batch_size)
        if self.largest:
            return steps_up_to(rows, least=self.ranks) or [self.ranks]
        sizes = parts(self.effective, least=self.ranks)
        if not self.cfg.data.drop_last:
            return sizes
        return [size for size in sizes if rows % size == rows % given] or [given]

    def window(self, size: int) -> int:
        """Return the batches of a step to measure with: gradients are there in the second forward pass already."""
        accumulate = int(self.cfg.trainer.accumulate) if self.largest else -(-self.effective // size)
        return min(2, accumulate)

    def batch(self, search: Search, best: Probe, facts: dict[str, Any]) -> Batch:
        """Return what came of it."""
        measured = f"{in_gib(best.peak or 0)} of {in_gib(facts['free'])} free at {best.size}"
        larger, above = [size for size in search.sizes if size > best.size], search.too_large
        if larger and above is not None and above.size <= min(larger):
            measured += f"; {above.size} does not fit"
        elif larger:
            measured += f"; {min(larger)} would take about {in_gib(search.predicted(min(larger)))}"
        if self.largest:
            given = int(self.cfg.data.batch_size)
            lines = [f"batch   {best.size}: the largest that fits ({measured})"]
            if best.size != given:
                times = f"{best.size / given:.3g} times the {given} of data.batch_size"
                lines.append(f"        a step sees {times}: the learning rate is not adapted to that")
            return Batch(best.size, int(self.cfg.trainer.accumulate), tuple(lines))
        accumulate = self.effective // best.size
        if accumulate == 1:
            return Batch(best.size, 1, (f"batch   {best.size}: fits as a whole ({measured})",))
        line = f"batch   {best.size} x {accumulate} accumulated: the largest part of {self.effective} that fits"
        # In spite of the same gradients, some things see the parts of a batch instead of the whole.
        sees = {
            "mixup": self.cfg.data.mixup.alpha is not None,
            "CutMix": self.cfg.data.mixup.get("cutmix_alpha") is not None,
            "the contrastive loss": str(self.cfg.loss["_target_"]).endswith("Contrastive"),
        }
        named = ["batch norm (where there is any)", *(name for name, there in sees.items() if there)]
        parts_only = f"        {' and '.join(named)} see{'' if len(named) > 1 else 's'} the parts only"
        return Batch(best.size, accumulate, (f"{line} ({measured})", parts_only))
