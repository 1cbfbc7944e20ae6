"""Which GPUs a process sees: chosen by number, UUID or free memory, whole or as instances; and waited for."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.device import about, placement, visible
from lightkit.device.about import why_no_cuda
from lightkit.device.placement import located
from lightkit.device.visible import check_shown, mapping, overlooked, show_only, waited_for
from lightkit.monitor.gpus import GpuFacts, GpuSample, Source
from tests.monitor.fakes import GIB, Card, fake_nvml, install
from tests.refused import refused

UUIDS = [f"GPU-{letter * 8}-0000" for letter in "abcd"]
BUSY, FREE = 30_000, 100


class Machine(Source):
    """GPUs with 40 GiB each, of which some is in use."""

    def __init__(self, used=(100, 30_000, 0, 5), names=("A100",) * 4) -> None:
        super().__init__()
        self.gpus = tuple(GpuFacts(i, UUIDS[i], names[i], memory_total_mib=40_960) for i in range(len(used)))
        self.used, self.closed = used, False

    def samples(self, gpus):
        return [GpuSample(gpu, memory_used_mib=self.used[gpu.index]) for gpu in gpus]

    def close(self) -> None:
        self.closed = True


class SplitMachine(Machine):
    """A whole GPU with 10 GiB free, one that is split into two instances, and one that is split into none."""

    def __init__(self) -> None:
        super().__init__(used=(30_720, 0))
        sizes = (("1111-1", "1g.5gb", 5_000), ("2222-2", "2g.20gb", 20_000))
        instances = [
            GpuFacts(1, f"MIG-{name}", "A100", mig=size, memory_total_mib=mib, whole=UUIDS[1])
            for name, size, mib in sizes
        ]
        split = [GpuFacts(index, UUIDS[index], "A100", split=True) for index in (1, 2)]
        self.gpus = (self.gpus[0], split[0], *instances, split[1])

    def samples(self, gpus):
        used = {UUIDS[0]: 30_720, "MIG-1111-1": 0, "MIG-2222-2": 1_000}
        return [GpuSample(gpu, memory_used_mib=used[gpu.uuid]) for gpu in gpus]


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


def shown() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def mixed() -> Machine:
    return Machine(used=(0, 0), names=("GT 710", "A100"))


@pytest.mark.parametrize(
    ("make", "before", "wanted", "expected"),
    [
        (Machine, None, [0, 2], "0,2"),
        (Machine, None, [2, 0], "2,0"),
        (Machine, None, "auto", "2"),
        (Machine, None, "auto:2", "2,3"),
        (Machine, None, "auto:3", "2,3,0"),
        (Machine, None, "auto:4", "0,1,2,3"),
        (lambda: Machine(used=(100, 30_000, None, 5)), None, "auto:3", "3,0,1"),  # does not tell: taken last
        (Machine, "2,3", [3], "3"),
        (Machine, "1,0", "auto:2", "1,0"),
        (Machine, "1,0,2", "auto:2", "2,0"),
        (Machine, f"{UUIDS[1]},GPU-cc", [2, 1], "2,1"),
        (SplitMachine, None, ["MIG-2222-2"], "MIG-2222-2"),
        (SplitMachine, None, "MIG-2222", "MIG-2222-2"),
        (SplitMachine, None, [UUIDS[0]], "0"),
        (SplitMachine, None, [0], "0"),
        (SplitMachine, None, "auto:1", "MIG-2222-2"),
        (SplitMachine, "0,MIG-1111-1", "auto", "0"),
        (SplitMachine, "MIG-1111-1", [1], "MIG-1111-1"),
        (SplitMachine, "MIG-1111-1,MIG-2222-2", ["MIG-2222-2"], "MIG-2222-2"),
        (SplitMachine, "1", ["MIG-2222-2"], "MIG-2222-2"),
    ],
)
def test_the_gpus_that_are_asked_for(monkeypatch, make, before, wanted, expected):
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    machine = make()
    chosen = show_only(wanted, look=lambda: machine)
    assert shown() == expected
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert ",".join(str(gpu.uuid if gpu.mig else gpu.index) for gpu in chosen) == expected
    assert machine.closed
    show_only(wanted, look=make)
    assert shown() == expected, "a second run in this process finds what the first one chose"


@pytest.mark.parametrize(
    ("make", "before", "wanted", "text"),
    [
        (SplitMachine, None, [1], "GPU 1 is split into MIG instances: which one? … MIG-1111-1 (1g.5gb), MIG-2222-2"),
        (SplitMachine, None, [UUIDS[1]], "which one? … fix:      device.gpus=[MIG-1111-1]"),
        (SplitMachine, None, [2], "GPU 2 is split by MIG, without an instance to compute on"),
        (SplitMachine, None, ["MIG-1111-1", "MIG-2222-2"], "computes on one MIG instance, and on no other GPU"),
        (SplitMachine, None, [0, "MIG-1111-1"], "on no other GPU beside it … need whole ones"),
        (SplitMachine, None, ["MIG-1111-1", "MIG-1"], "a GPU is named twice"),
        (SplitMachine, None, ["MIG-9"], "there is no MIG-9 here … 0 (A100), MIG-1111-1 (A100 MIG 1g.5gb)"),
        (SplitMachine, None, "auto:2", "there are only 1 GPU to choose from; a process computes on one MIG instance"),
        (SplitMachine, "0", ["MIG-1111-1"], "MIG-1111-1 is not among those that this process may use (CUDA_VISIBLE_DE"),
        (Machine, None, [0, 4], "gpus: there is no GPU 4 here … 0 (A100), 1 (A100) … device=cpu runs on"),
        (Machine, "1,2", [0], "GPU 0 is not among those that this process may use (CUDA_VISIBLE_DEVICES=1,2) … 1 (A"),
        (Machine, None, "auto:5", "there are only 4 GPUs to choose from\n"),
        (Machine, "1,2", "auto:3", "there are only 2 GPUs to choose from (CUDA_VISIBLE_DEVICES=1,2)"),
        (Machine, "", "auto", "there are only 0 GPUs"),
        (Machine, None, "freest", "not a choice of GPUs"),
        (Machine, None, [], "this chooses no GPU"),
        (Machine, None, [1, 1], "a GPU is named twice"),
        (Machine, None, [-1], "not the numbers or UUIDs of GPUs"),
        (Machine, None, 3, "gpus … a list of GPU numbers such as [0, 2]"),
        (lambda: Source("no driver"), None, [0], "there is no NVIDIA GPU here (no driver) … device=cpu runs on the"),
        (mixed, "0,1", [1], "counts the fastest GPU first … CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ],
)  # fmt: skip
def test_gpus_that_are_not_there_or_cannot_be_chosen_are_refused(monkeypatch, make, before, wanted, text):
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    refused(lambda: show_only(wanted, look=make), text)
    assert shown() == before
    if make is mixed:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        show_only(wanted, look=make)
        assert shown() == "1"


def test_of_an_instance_cuda_may_tell_the_uuid_of_the_whole():
    chosen = show_only(["MIG-2222-2"], look=SplitMachine)
    for uuid in ("2222-2", UUIDS[1].removeprefix("GPU-")):
        check_shown(chosen, 1, {0: uuid})
        (line,) = mapping([0], {0: uuid}, look=SplitMachine)
        assert line == "cuda:0 is GPU 1 (A100 MIG 2g.20gb, MIG-2222-2)"
    refused(lambda: check_shown(chosen, 1, {0: "1111-1"}), "VISIBLE_DEVICES=MIG-2222-2")


def seen(*order: int) -> dict[int, str]:
    return {number: UUIDS[index].removeprefix("GPU-") for number, index in enumerate(order)}


def test_a_choice_that_came_too_late_is_noticed_and_the_mapping_is_told():
    chosen = show_only([2, 0], look=Machine)
    check_shown(chosen, 2, seen(2, 0))
    check_shown(chosen, 2, {})
    for count, uuids in ((4, seen(0, 1, 2, 3)), (2, seen(0, 2)), (2, seen(0, 1))):
        with pytest.raises(UserError, match=rf"PyTorch sees {count} GPUs that are not those(.|\n)*VISIBLE_DEVICES=2,0"):
            check_shown(chosen, count, uuids)
    lines = [f"cuda:0 is GPU 2 (A100, {UUIDS[2]})", f"cuda:1 is GPU 0 (A100, {UUIDS[0]})"]
    assert mapping(range(2), seen(2, 0), look=Machine) == lines
    assert mapping(range(2), {}, look=Machine) == lines, "without PyTorch's word, by what was set"
    assert mapping(range(2), seen(2, 0), look=Source) == []


def machine_of_torch(monkeypatch, count: int, uuids: dict[int, str], *, built: bool = True) -> None:
    def looking(function):
        return lambda *args: function(*args, look=Machine)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(placement, "cuda_uuids", lambda devices: uuids)
    for name in ("show_only", "mapping", "overlooked"):
        monkeypatch.setattr(placement, name, looking(getattr(placement, name)))


UNSEEN = "the driver shows 4 NVIDIA GPUs (A100, …), but PyTorch sees none: this PyTorch was built without CUDA"


def test_a_name_among_chosen_gpus(monkeypatch):
    machine_of_torch(monkeypatch, 2, seen(2, 0))
    for name, number in (("auto", 0), ("cuda", 0), ("cuda:1", 1)):
        device, lines = located(name, [2, 0])
        assert device == torch.device("cuda", number)
        assert [line.split(" (")[0] for line in lines] == ["cuda:0 is GPU 2", "cuda:1 is GPU 0"]


def test_other_peoples_choice_is_told_too(monkeypatch):
    machine_of_torch(monkeypatch, 1, seen(3))
    assert located("cuda", None) == (torch.device("cuda", 0), [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert located("cuda", None)[1] == [f"cuda:0 is GPU 3 (A100, {UUIDS[3]})"]


def test_the_cpu_is_not_taken_without_a_word_where_the_driver_shows_gpus(monkeypatch):
    machine_of_torch(monkeypatch, 0, {}, built=False)
    assert located("cpu", [7]) == (torch.device("cpu"), [])
    assert shown() is None
    assert located("auto", None) == (torch.device("cpu"), [f"device.name=auto takes the CPU: {UNSEEN}"])
    for name, gpus, key in (("auto", "auto:2", "gpus"), ("cuda", [0], "gpus"), ("cuda", None, "name")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with pytest.raises(UserError) as caught:
            located(name, gpus)
        assert (caught.value.what, caught.value.argument, caught.value.received) == (UNSEEN, key, gpus or name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(placement, "overlooked", lambda: overlooked(look=Source))
    assert located("auto", None) == (torch.device("cpu"), [])


def test_why_pytorch_sees_no_gpu(monkeypatch):
    machine_of_torch(monkeypatch, 0, {})
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    hidden = "CUDA_VISIBLE_DEVICES is set and empty, which hides all of them"
    for variable, reason in (("", hidden), ("7", "CUDA_VISIBLE_DEVICES=7 names none")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
        assert why_no_cuda() == reason
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        assert about.torch_facts()["error"].endswith("import of torch halted; None in sys.modules")


def test_cuda_says_which_gpus_its_devices_are(monkeypatch):
    class Facts:
        def __init__(self, device: torch.device) -> None:
            if device.index == 0:
                self.uuid = "aaaa"

    devices = [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", Facts)
    for version, uuids in (("13.2", {0: "aaaa"}), (None, {})):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert about.cuda_uuids(devices) == uuids


def test_with_the_library_of_the_driver(monkeypatch):
    cards = [Card(uuid=UUIDS[i], used=used * 2**20, total=40 * GIB) for i, used in enumerate((30_000, 20))]
    install(monkeypatch, fake_nvml(cards))
    show_only("auto:1")
    assert shown() == "1"


def emptying(machine: Machine, *later: tuple[int, ...]):
    """Return a sleep that lets others leave the machine, a step with each look."""
    steps = iter(later)

    def sleep(_seconds: float) -> None:
        machine.used = next(steps)

    return sleep


@pytest.mark.parametrize(
    ("wanted", "later", "expected"),
    [
        ("auto:1", [(BUSY, BUSY, FREE, BUSY)], "2"),
        ("auto:1", [(BUSY,) * 4, (BUSY, BUSY, 4_096, FREE)], "3"),
        ("auto:2", [(BUSY, FREE, BUSY, BUSY), (0, FREE, BUSY, BUSY)], "0,1"),
        ([3, 0], [(BUSY, 0, 0, 0), (FREE, 0, 0, FREE)], "3,0"),
        ([1], [(0, 5_000, 0, 0), (0, 4_000, 0, 0)], "1"),
    ],
)
def test_it_waits_until_so_many_are_free(wanted, later, expected):
    machine, lines = Machine(used=(BUSY,) * 4), []
    with waited_for(wanted, tell=lines.append, look=lambda: machine, sleep=emptying(machine, *later)) as chosen:
        assert shown() == ",".join(str(gpu.index) for gpu in chosen) == expected
    assert machine.closed
    assert lines[0].startswith("waits for ")
    assert "73% of its memory in use" in lines[0]
    assert lines[1].startswith(f"goes on with GPU {expected[0]} (A100, GPU-")
    assert len(lines) == 2


def test_nothing_is_said_where_there_is_one_and_nothing_waited_for_that_is_not_there():
    for look, expected in ((Machine, "2"), (SplitMachine, "MIG-1111-1")):
        with waited_for("auto", tell=pytest.fail, look=look):
            assert shown() == expected
        del os.environ["CUDA_VISIBLE_DEVICES"]
    for wanted in ("auto:5", [7], "auto:x"):
        with pytest.raises(UserError), waited_for(wanted, tell=pytest.fail, look=Machine):
            pass


def test_two_that_wait_at_the_same_time_take_different_ones(monkeypatch):
    lines: list[str] = []

    def waiting(wanted="auto:1", **options):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return waited_for(wanted, tell=lines.append, look=lambda: Machine(used=(FREE, BUSY, 0, BUSY)), **options)

    def ended(_seconds: float) -> None:
        raise KeyboardInterrupt

    with waiting() as one, waiting() as other:
        assert [one[0].index, other[0].index] == [2, 0]
        with pytest.raises(KeyboardInterrupt), waiting(sleep=ended):
            pass
        assert "GPU 0 taken" in lines[-1]
    with waiting("auto:2"):
        assert shown() == "2,0"  # both were given back


def test_lines_of_waiting_come_ever_more_seldom():
    machine, lines, later = Machine(used=(BUSY,)), [], [(BUSY,)] * 1_000
    with waited_for("auto", tell=lines.append, look=lambda: machine, sleep=emptying(machine, *later, (0,))):
        pass
    waits = "waits for a GPU that is free"
    expected = [waits, *(f"{waits}, for {minutes} minutes so far" for minutes in (10, 20, 40, 80))]
    assert [line.partition(" (")[0] for line in lines[:-1]] == expected
    assert visible.POLL_SECONDS == 5.0
