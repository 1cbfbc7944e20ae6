"""Who looks on while a run trains, such as the proof that it resumes bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

from lightkit.trainer.learner import Learner


class Observer:
    """The plain case: nobody looks on."""

    rows: Mapping[str, int] = MappingProxyType({})
    """Rows to keep of each split, so that the run is short; empty keeps all."""

    def watch(self, learner: Learner) -> Learner:
        """Return the learner with what is needed to look on: callbacks, a task that tells.

        Args:
            learner: As it was built; no checkpoint is loaded yet.
        """
        return learner

    def saving(self, learner: Learner) -> AbstractContextManager[None]:
        """Look on while a checkpoint is written inside."""
        del learner
        return nullcontext()
