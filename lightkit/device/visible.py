"""Which GPUs a process sees, settled before PyTorch looks for any.

CUDA reads `CUDA_VISIBLE_DEVICES` once, when it is first asked for its devices. The processes that a run starts inherit
what is set here.

The lock of a GPU is a file in the user's state folder, locked as long as the run lasts. It keeps two runs of one user
that wait at the same time apart. Other users, and programs that do not wait in this way, do not see it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from lightkit.common.errors import UserError
from lightkit.common.strategies import EXPECTED_GPUS, read_gpus
from lightkit.common.text import counted
from lightkit.device.about import why_no_cuda
from lightkit.monitor.gpus import (
    GpuFacts,
    GpuSample,
    Source,
    allowed,
    by_uuid,
    computing_on,
    is_free,
    is_order_known,
    parts_of,
    used_share,
)
from lightkit.monitor.nvml import open_source
from lightkit.processes.files import make_user_state, take, user_state

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
TO_CPU = "device=cpu runs on the CPU"


def show_only(wanted: Any, *, look: Callable[[], Source] = open_source) -> list[GpuFacts]:
    """Let this process, and those it starts, see the wanted GPUs only, counted in this order.

    Args:
        wanted: Numbers as `nvidia-smi` has them, UUIDs, or `auto:N` for the N with the most free memory. A GPU that is
            split by MIG is used by one instance. Where `CUDA_VISIBLE_DEVICES` is set already, they must be among those.
        look: Opens what knows the GPUs of the machine.

    Returns:
        The GPUs: the first is `cuda:0`.

    Raises:
        UserError: There are no such GPUs, or this process may not use them.
    """
    with closing(look()) as source:
        among, count = candidates(source, wanted)
        chosen = among if len(among) == count else _freest(source, among, count)
    hide_others(chosen)
    return chosen


def candidates(source: Source, wanted: Any) -> tuple[list[GpuFacts], int]:
    """Return the GPUs that a choice is made among, and how many of them: those that are named, or all.

    Args:
        source: What knows the GPUs of the machine.
        wanted: See `show_only`.

    Raises:
        UserError: There are no such GPUs, or this process may not use them.
    """
    try:
        names = read_gpus(wanted)
    except (ValueError, TypeError) as error:
        raise UserError(
            str(error), argument="gpus", expected=EXPECTED_GPUS, received=wanted, family="no-such-device"
        ) from error
    if not source.gpus:
        what = f"there is no NVIDIA GPU here ({source.reason})"
        raise UserError(what, argument="gpus", received=wanted, fix=TO_CPU, family="no-such-device")
    if VISIBLE in os.environ and not is_order_known(source.gpus):
        what = f"{VISIBLE} counts the fastest GPU first here, so its numbers are not those of nvidia-smi"
        fix = f"set {ORDER}=PCI_BUS_ID beside it"
        raise UserError(what, argument="gpus", received=os.environ[VISIBLE], fix=fix, family="no-such-device")
    among = allowed(source.gpus)
    if isinstance(names, int):
        among = [gpu for gpu in among if names == 1 or gpu.mig is None]
        if names > len(among):
            raise _missing(source, among, f"auto:{names}")
        return among, names
    named = _named(source, among, names)
    if len(named) > 1 and any(gpu.mig is not None for gpu in named):
        what = "a process computes on one MIG instance, and on no other GPU beside it"
        fix = "one of them; several GPUs, or processes, need whole ones"
        raise UserError(what, argument="gpus", received=wanted, fix=fix, family="no-such-device")
    return named, len(named)


def hide_others(chosen: Sequence[GpuFacts]) -> None:
    """Let this process, and those it starts, see these GPUs only, counted in this order."""
    os.environ[ORDER] = "PCI_BUS_ID"
    os.environ[VISIBLE] = ",".join(map(_name, chosen))


def check_shown(chosen: Sequence[GpuFacts], count: int, uuids: Mapping[int, str]) -> None:
    """Find out whether the choice came in time.

    Args:
        chosen: What `show_only` gave.
        count: Devices that PyTorch sees.
        uuids: What CUDA says they are, by number.

    Raises:
        UserError: PyTorch sees others: something asked for GPUs before they were chosen.
    """
    # Of a MIG instance some versions of CUDA tell the UUID of the whole GPU.
    known = ([uuid.partition("-")[2] for uuid in (gpu.uuid, gpu.whole) if uuid] for gpu in chosen)
    others = [names for number, names in enumerate(known) if uuids.get(number, "") not in names]
    if count != len(chosen) or (others and uuids):
        names = ",".join(map(_name, chosen))
        raise UserError(
            f"PyTorch sees {count} GPUs that are not those: something asked for GPUs before they were chosen",
            argument="gpus",
            received=names,
            fix=f"a process of its own, or start this one with {ORDER}=PCI_BUS_ID {VISIBLE}={names}",
            family="no-such-device",
        )


def overlooked(*, look: Callable[[], Source] = open_source) -> str | None:
    """Name the GPUs that the driver shows while PyTorch sees none, with the reason; None where the driver shows none.

    Args:
        look: Opens what knows the GPUs of the machine.
    """
    with closing(look()) as source:
        gpus = [gpu for gpu in source.gpus if gpu.mig is None]
    if not gpus:
        return None
    named = f"{len(gpus)} NVIDIA GPU{'s' if len(gpus) > 1 else ''} ({gpus[0].name}{', …' if len(gpus) > 1 else ''})"
    return f"the driver shows {named}, but PyTorch sees none: {why_no_cuda()}"


def mapping(numbers: Iterable[int], uuids: Mapping[int, str], *, look: Callable[[], Source] = open_source) -> list[str]:
    """Tell which GPU stands behind each number of PyTorch, for people; empty where no driver answers.

    Args:
        numbers: PyTorch's numbers: 1 for `cuda:1`.
        uuids: What CUDA says they are, by number.
        look: Opens what knows the GPUs of the machine.
    """
    with closing(look()) as source:
        rows = [(number, computing_on(source.gpus, [number], uuids=uuids)) for number in numbers]
    return [f"cuda:{number} is {shown(found[0])}" for number, found in rows if found]


def shown(gpu: GpuFacts) -> str:
    """Put a GPU in words: number, model, UUID."""
    part = "" if gpu.mig is None else f" MIG {gpu.mig}"
    return f"GPU {gpu.index} ({gpu.name}{part}, {gpu.uuid})"


def _name(gpu: GpuFacts) -> str:
    """Return how CUDA is told of it."""
    return str(gpu.index) if gpu.mig is None else gpu.uuid


def _named(source: Source, among: Sequence[GpuFacts], names: Sequence[int | str]) -> list[GpuFacts]:
    found: list[GpuFacts] = []
    for name in names:
        gpu = _meant(source.gpus, name)
        meant = [] if gpu is None else parts_of(gpu, among) if gpu.split else [one for one in among if one == gpu]
        if not meant:
            raise _missing(source, among, name)
        if len(meant) > 1:
            what = f"GPU {meant[0].index} is split into MIG instances: which one?"
            choices = [f"{part.uuid} ({part.mig})" for part in meant]
            fix = f"device.gpus=[{meant[0].uuid}]"
            raise UserError(what, argument="gpus", received=name, choices=choices, fix=fix, family="no-such-device")
        if meant[0] in found:
            raise UserError("a GPU is named twice", argument="gpus", received=list(names), family="no-such-device")
        found += meant
    return found


def _meant(gpus: Sequence[GpuFacts], name: int | str) -> GpuFacts | None:
    """Find the GPU of a number, or the GPU or instance of a UUID, wherever it is."""
    if isinstance(name, str):
        return by_uuid(name, gpus)
    return next((gpu for gpu in gpus if gpu.index == name and gpu.mig is None), None)


def _freest(source: Source, among: Sequence[GpuFacts], count: int) -> list[GpuFacts]:
    """Return so many GPUs with the most free memory."""
    free: dict[GpuFacts, float] = {}
    for sample in source.samples(among):  # 0 where a GPU does not tell, as one that is broken
        total, used = sample.gpu.memory_total_mib, sample.memory_used_mib
        free[sample.gpu] = 0.0 if total is None or used is None else total - used
    return sorted(among, key=lambda gpu: -free.get(gpu, 0.0))[:count]


def _missing(source: Source, among: Sequence[GpuFacts], wanted: int | str) -> UserError:
    limited = f"{VISIBLE}={os.environ.get(VISIBLE, '')}"
    name = wanted if isinstance(wanted, str) else f"GPU {wanted}"
    what = f"there is no {name} here"
    if str(wanted).startswith("auto"):
        what = f"there are only {counted(len(among), 'GPU')} to choose from" + (
            f" ({limited})" if VISIBLE in os.environ else ""
        )
        if any(gpu.split for gpu in source.gpus):
            what += "; a process computes on one MIG instance at most"
    elif (gpu := _meant(source.gpus, wanted)) is not None:
        bare = gpu.split and not parts_of(gpu, source.gpus)
        why = f"is not among those that this process may use ({limited})"
        what = f"{name} is split by MIG, without an instance to compute on" if bare else f"{name} {why}"
    names = [f"{_name(gpu)} ({gpu.name}{'' if gpu.mig is None else f' MIG {gpu.mig}'})" for gpu in among]
    return UserError(
        what,
        argument="gpus",
        received=wanted,
        choices=names,
        fix=f"other numbers, or {TO_CPU}",
        family="no-such-device",
    )


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
    with ExitStack() as stack:
        with closing(look()) as source:
            among, count = candidates(source, wanted)
            waited, due = 0.0, 0.0
            while len(chosen := _taken(stack, _free(source, among), count)) < count:
                if waited >= due:
                    due = 2 * waited or _FIRST_SECONDS
                    tell(_told(source.samples(among), count, waited))
                sleep(POLL_SECONDS)
                waited += POLL_SECONDS
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
    if state is None:
        return True
    try:
        folder = make_user_state(state) / "gpus"
        folder.mkdir(exist_ok=True)
        file = stack.enter_context((folder / gpu.uuid.replace("/", "_")).open("ab"))
    except OSError:
        return True
    return take(file)


def _told(samples: Sequence[GpuSample], count: int, waited: float) -> str:
    """Say what is waited for, and why."""
    shares = ", ".join(
        f"GPU {sample.gpu.index} {'taken' if is_free(sample) else f'{used_share(sample):.0%} of its memory in use'}"
        for sample in samples
    )
    many = "a GPU that is free" if count == 1 else f"{count} GPUs that are free"
    since = f", for {waited / 60:.0f} minutes so far" if waited else ""
    return f"waits for {many}{since} ({shares}); Ctrl-C ends it"
