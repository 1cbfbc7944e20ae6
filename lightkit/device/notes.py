"""Lines for people about the device, from before there is a logger until the end of the run."""

from __future__ import annotations

from collections.abc import Callable


class Notes:
    """Keeps lines until somebody takes them; from then on hands each over at once. No line is told twice."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._tell: Callable[[str], None] | None = None

    def add(self, line: str) -> None:
        """Tell a line, or keep it."""
        if line in self.lines:
            return
        self.lines.append(line)
        if self._tell is not None:
            self._tell(line)

    def hand_to(self, tell: Callable[[str], None]) -> None:
        """Tell all lines so far, and those to come."""
        self._tell = tell
        for line in self.lines:
            tell(line)
