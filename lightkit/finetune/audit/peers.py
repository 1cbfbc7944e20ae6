"""Who looks at a model: one process for itself, or several that each hold a part of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class PeerGroup(Protocol):
    """Processes that look at one model together; `lightkit.device.ranks.Ranks` are some.

    All of them ask the same questions at the same steps, and come to the same verdict.
    """

    @property
    def main(self) -> bool:
        """Whether what every process has as a whole, such as a buffer, is this one's to judge."""

    def unite(self, texts: Iterable[str]) -> list[str]:
        """What any of them says, each once; waits for all."""


class Alone:
    """The plain case: this process sees everything."""

    main = True

    def unite(self, texts: Iterable[str]) -> list[str]:
        """See `Witnesses`."""
        return list(dict.fromkeys(texts))
