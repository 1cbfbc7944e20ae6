"""Waiting for GPUs that nobody uses, and keeping them from others of this user who wait.

The lock of a GPU is a file in the user's state folder, locked as long as the run lasts. It keeps two runs of one user
that wait at the same time apart. Other users, and programs that do not wait in this way, do not see it.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import IO, Any

from lightkit.common.gpu_choice import read_gpus
from lightkit.common.state import make_user_state, user_state
from lightkit.device.visible import candidates, hide_others, shown
from lightkit.monitor.gpus import GpuFacts, GpuSample, Source, is_free, used_share
from lightkit.monitor.nvml import open_source

POLL_SECONDS = 5.0
"""Time between two looks at the GPUs."""
_FIRST_SECONDS = 600.0
"""Time after which a line says that it still waits; each further line takes twice as long."""


@contextmanager
def waited_for(
    wanted: Any,
    *,
    tell: Callable[[str], None],
    look: Callable[[], Source] = open_source,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[GpuFacts]]:
    """Wait until GPUs are free, and keep them inside: this process sees no others from then on.

    Args:
        wanted: As `show_only` takes it: those that are named, or so many of all.
        tell: Takes a line where there is something to wait for, and another when that has ended.
        look: Opens what knows the GPUs of the machine.
        sleep: Waits between two looks.

    Yields:
        The GPUs.

    Raises:
        UserError: There are no such GPUs, or this process may not use them.
    """
    source = look()
    with ExitStack() as stack:
        try:
            among, count = candidates(source, wanted)
            waited, due = 0.0, 0.0
            while len(chosen := _taken(stack, _free(source, among), count)) < count:
                if waited >= due:
                    due = 2 * waited or _FIRST_SECONDS
                    tell(_told(source.samples(among), count, waited))
                sleep(POLL_SECONDS)
                waited += POLL_SECONDS
        finally:
            source.close()
        if waited:
            tell(f"goes on with {', '.join(map(shown, chosen))}")
        names = read_gpus(wanted)
        order = chosen if isinstance(names, int) else among
        hide_others(order)
        yield order


def _free(source: Source, among: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Return the GPUs that nobody uses, those with the least memory in use first."""
    samples = [sample for sample in source.samples(among) if is_free(sample)]
    return [sample.gpu for sample in sorted(samples, key=used_share)]


def _taken(stack: ExitStack, free: Sequence[GpuFacts], count: int) -> list[GpuFacts]:
    """Lock as many GPUs as are wanted; none where there are too few."""
    with ExitStack() as tried:
        found = list[GpuFacts]()
        for gpu in free:
            if len(found) < count and _lock(tried, gpu):
                found.append(gpu)
        if len(found) == count:
            stack.push(tried.pop_all())
            return found
    return []


def _lock(stack: ExitStack, gpu: GpuFacts) -> bool:
    """Lock a GPU for this process; True where there is no place for locks, or no locks."""
    state = user_state()
    try:
        import fcntl

        if state is None:
            return True
        folder = make_user_state(state) / "gpus"
        folder.mkdir(exist_ok=True)
        file = stack.enter_context((folder / gpu.uuid.replace("/", "_")).open("ab"))
    except (ImportError, OSError):
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    os.register_at_fork(after_in_child=partial(_close, weakref.ref(file)))
    return True


def _close(file: weakref.ref[IO[bytes]]) -> None:
    """Give a lock up in a forked process, which may outlive the run."""
    if (held := file()) is not None:
        with suppress(OSError):
            held.close()


def _told(samples: Sequence[GpuSample], count: int, waited: float) -> str:
    """Say what is waited for, and why."""
    shares = ", ".join(
        f"GPU {sample.gpu.index} {'taken' if is_free(sample) else f'{used_share(sample):.0%} of its memory in use'}"
        for sample in samples
    )
    many = "a GPU that is free" if count == 1 else f"{count} GPUs that are free"
    since = f", for {waited / 60:.0f} minutes so far" if waited else ""
    return f"waits for {many}{since} ({shares}); Ctrl-C ends it"
