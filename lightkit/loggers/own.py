"""Loggers that a configuration names: what becomes of a run where one of them fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.loggers.base import Logger, Loggers
from lightkit.loggers.outbox import Outbox

_LOG = logging.getLogger(__name__)


class OwnLogger(Loggers):
    """A logger of the user's. What it raises before the first value ends the run; later it is left out, with a warning.

    Args:
        key: Where it stands in the configuration.
        make: Builds it.
        strict: Whether an error may end the run at all: not where models were trained already.

    Raises:
        UserError: It cannot be built.
    """

    def __init__(self, key: str, make: Callable[[], Logger], strict: bool = True) -> None:
        super().__init__([])
        self._key, self._strict, self._failure = key, strict, ""
        try:
            made = make()
            self.loggers = [Outbox(key, made) if made.patient else made]
        except UserError as error:
            if strict:
                raise
            self._leave_out("its constructor", error)

    def _each(self, method: str, *args: Any, **kwargs: Any) -> None:
        self._strict = self._strict and method in _BEFORE_TRAINING
        try:
            super()._each(method, *args, **kwargs)
        except Exception as error:
            if not self._strict:
                self._leave_out(method, error)
                return
            what = f"{type(self.loggers[0]).__name__}.{method} fails: {in_short(error)}"
            raise UserError(what, key=self._key, fix=f"mend it, or leave it out: ~{self._key}") from error

    def _leave_out(self, method: str, error: Exception) -> None:
        self.loggers, self._failure = [], f"{self._key} is left out: {method} fails: {in_short(error)}"
        _LOG.warning("%s; the run goes on", self._failure)

    def close(self) -> None:
        """Close it; say once more where it was left out."""
        self._strict = False
        self._each("close")
        if self._failure:
            _LOG.warning("%s; what came after that is not in it", self._failure)
            self._failure = ""


_BEFORE_TRAINING = ("start", "hparams", "message", "table", "text", "images", "histogram", "graph")
"""Methods that are called before the first step; values, progress and files of checkpoints come later."""
