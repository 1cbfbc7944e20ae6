"""Calls to a logger in a thread of its own: what fails is tried again, and training waits for nothing."""

from __future__ import annotations

import copy
import logging
import re
import threading
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

from lightkit.common.failures import in_short
from lightkit.common.text import counted, without_secrets
from lightkit.loggers.base import Logger, Loggers

_LOG = logging.getLogger(__name__)
PAUSES_SECONDS = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)
"""Time between two tries of a call; the last one counts for all that follow."""
PATIENCE_SECONDS = 30.0
"""Time without any progress after which the end of a run no longer waits."""
_TRIES_AT_THE_END = 3
"""How often a call that fails is tried at the end of a run, and how many of these in a row may be given up before the
rest is."""
_MOST_PICTURES = 200
_HEAVY = ("figure", "images", "histogram")
"""What may fill the memory while it waits."""


class _Call(NamedTuple):
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Outbox(Loggers):
    """Hands calls to a logger in their order. One that fails is told once and tried again, before all that follow it.

    At the end the calls that still wait are tried a few times more; what does not arrive is told. Tensors and figures
    are copied, as training changes them.

    Args:
        key: Where the logger stands in the configuration.
        logger: Takes the calls; only those are made whose methods its class overrides.
    """

    def __init__(self, key: str, logger: Logger) -> None:
        super().__init__([logger])
        self._key = key
        self._waiting = deque[_Call]()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending, self._done, self._late, self._lost, self._failure = False, 0, 0, 0, ""

    def _each(self, method: str, *args: Any, **kwargs: Any) -> None:
        if getattr(type(self.loggers[0]), method) is getattr(Logger, method):
            return
        with self._changed:
            if method in _HEAVY and sum(call.method in _HEAVY for call in self._waiting) >= _MOST_PICTURES:
                self._lost += 1
                return
            self._waiting.append(_Call(method, tuple(map(_copied, args)), kwargs))
            if self._thread is None:
                self._ending, self._late = False, 0
                self._thread = threading.Thread(target=self._work, args=(self._waiting,), name=self._key, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def sync(self) -> None:
        """Do nothing: what did not arrive before a kill is sent when the run goes on."""

    def close(self) -> None:
        """Wait for what is under way, as long as something arrives; tell what did not."""
        thread, self._thread = self._thread, None
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        while thread is not None and thread.is_alive():
            before = self._done
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive() and self._done == before:
                self._failure = self._failure or f"nothing has moved for {PATIENCE_SECONDS:g} seconds"
                self._lost += len(self._waiting)
                self._waiting = deque()  # the thread keeps its own, in case that it comes back
                break
        if self._lost:
            missing = f"{counted(self._lost, 'call')} did not arrive"
            _LOG.warning("%s: %s; the last failure: %s", self._key, missing, self._failure or "too many pictures")
        elif self._failure:
            _LOG.warning("%s: what failed for a while has arrived: %s", self._key, self._failure)
        self._lost, self._failure = 0, ""

    def _work(self, waiting: deque[_Call]) -> None:
        tries = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: waiting or self._ending)
                if not waiting:
                    break
                call = waiting[0]
            try:
                super()._each(call.method, *call.args, **call.kwargs)
            except Exception as error:
                tries += 1
                if not self._goes_on(call, error, tries, waiting):
                    continue
            else:
                tries = self._late = 0
            with self._changed:
                waiting.popleft()
                self._done += 1
        try:
            super().close()
        except Exception as error:
            self._lost, self._failure = self._lost + 1, f"close: {told(error)}"

    def _goes_on(self, call: _Call, error: Exception, tries: int, waiting: deque[_Call]) -> bool:
        """Note a failure, and wait before the next try; tells whether to leave the call out instead."""
        if not self._failure:
            what = "it is tried again, and the run goes on"
            _LOG.warning("%s: %s fails: %s; %s", self._key, call.method, told(error), what)
        self._failure = f"{call.method}: {told(error)}"
        with self._changed:
            if not self._ending:
                self._changed.wait_for(lambda: self._ending, PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS)) - 1])
                return False
            self._late += 1
            if self._late % _TRIES_AT_THE_END:
                return False
            gone = len(waiting) if call.method == "start" or self._late >= _TRIES_AT_THE_END**2 else 1
            self._lost += gone
            for _ in range(gone - 1):
                waiting.pop()
        return True


def told(error: Exception) -> str:
    """Return an error on one line, without secrets: neither those of the environment, nor users of addresses."""
    return re.sub(r"//[^/@\s]*@", "//", without_secrets(in_short(error)))


def _copied(value: Any) -> Any:
    """Return what stays as it is while training goes on."""
    if hasattr(value, "detach"):
        return value.detach().cpu().clone()
    if hasattr(value, "savefig"):
        with suppress(Exception):  # one that cannot be copied is drawn as it is by then
            return copy.deepcopy(value)
    return value
