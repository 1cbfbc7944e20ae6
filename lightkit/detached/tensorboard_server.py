"""TensorBoard in this process: the one place that knows how it is started."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit.common.errors import UserError

RELOAD_SECONDS = 5
_USUAL = re.compile(
    r"^\s*$|TensorFlow installation not found|NOTE: Using experimental fast data|--load_fast=false"
    r"|tensorboard/issues/4784|Press CTRL\+C"
)
"""Lines on standard error that tell a user nothing."""


class Sieve(io.TextIOBase):
    """A stream that passes whole lines on, without those that TensorBoard prints every time.

    Args:
        tell: Takes a line.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._left = tell, ""

    def write(self, text: str) -> int:
        """Take a piece of text."""
        *lines, self._left = (self._left + text).split("\n")
        for line in lines:
            if not _USUAL.search(line):
                self._tell(line.rstrip())
        return len(text)


@contextmanager
def serving(runs: Path, *, host: str, port: int, tell: Callable[[str], None]) -> Iterator[None]:
    """Serve TensorBoard while inside.

    Args:
        runs: Folder with the runs.
        host: Address to listen on.
        port: A free port.
        tell: Takes what it complains about.

    Raises:
        UserError: It cannot listen there.
    """
    with contextlib.redirect_stderr(Sieve(tell)):
        import tensorboard.default
        import tensorboard.main_lib
        import tensorboard.program
        from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin

        class OrderedScalars(CustomScalarsPlugin):
            """Sends the curves of a chart in the order of their tags.

            The page gives out squares and diamonds in the order in which the curves of a run arrive. That is another
            one in each run otherwise, and so `train/loss` has squares here and diamonds there.
            """

            def scalars_impl(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
                answer = dict(super().scalars_impl(*args, **kwargs))
                return {
                    key: dict(sorted(part.items())) if isinstance(part, dict) else part for key, part in answer.items()
                }

        tensorboard.main_lib.global_init()
        plugins = [OrderedScalars if it is CustomScalarsPlugin else it for it in tensorboard.default.get_plugins()]
        board = tensorboard.program.TensorBoard(plugins=plugins)
        board.configure(logdir=str(runs), host=host, port=port, reload_interval=RELOAD_SECONDS)
        try:
            board.launch()
        except tensorboard.program.TensorBoardServerException as error:
            fix = "another --port, or none for a free one"
            raise UserError(error.msg, key=f"{host}:{port}", fix=fix, family="wrong-command") from error
        sys.stderr.flush()
        yield
