"""Nearest valid names for a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SYNONYMS = {
    "accumulate_grad_batches": "accumulate",
    "batchsize": "batch_size",
    "bs": "batch_size",
    "criterion": "loss",
    "dataset": "data",
    "devices": "gpus",
    "ema_decay": "decay",
    "gpu": "cuda",
    "grad_clip": "clip_norm",
    "gradient_accumulation_steps": "accumulate",
    "gradient_clip_val": "clip_norm",
    "learning_rate": "lr",
    "lr_scheduler": "scheduler",
    "max_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "max_steps": "steps",
    "n_epochs": "epochs",
    "network": "model",
    "num_epochs": "epochs",
    "optimizer": "optim",
    "random_seed": "seed",
    "wd": "weight_decay",
    "workers": "num_workers",
}
"""What other frameworks call things that have another name here."""


def nearest(name: str, valid: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the valid names most like `name`, or that mean the same, best first; empty when none is close.

    A dotted name also matches on its last part, so `optim.learning_rate` still finds `optim.lr`.
    """
    pool = list(dict.fromkeys(valid))
    lowered = {candidate.lower(): candidate for candidate in reversed(pool)}
    head, _, last = name.lower().rpartition(".")
    meant = SYNONYMS.get(last)
    same = [c for c in pool if meant and c.rpartition(".")[2] == meant]
    same.sort(key=lambda candidate: candidate.rpartition(".")[0] != head)
    close = [lowered[hit] for hit in difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.6)]
    hits = list(dict.fromkeys([*same, *close]))
    tail = name.rpartition(".")[2].lower()
    hits += [c for c in pool if c.rpartition(".")[2].lower() == tail and c not in hits]
    return hits[:count]
