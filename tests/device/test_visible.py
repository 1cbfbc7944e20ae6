from __future__ import annotations

import os

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.device import placement
from lightkit.device.about import why_no_cuda
from lightkit.device.placement import located
from lightkit.device.visible import check_shown, mapping, overlooked, show_only
from lightkit.monitor.gpus import GpuFacts, GpuSample, Source
from tests.monitor.fakes import GIB, Card, fake_nvml, install

UUIDS = [f"GPU-{letter * 8}-0000" for letter in "abcd"]


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


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


def shown() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([0, 2], "0,2"),
        ([2, 0], "2,0"),
        ([3], "3"),
        ("auto", "2"),
        ("auto:2", "2,3"),
        ("auto:3", "2,3,0"),
        ("auto:4", "0,1,2,3"),
    ],
)
def test_the_gpus_that_are_asked_for(wanted, expected):
    machine = Machine()
    found = show_only(wanted, look=lambda: machine)
    assert shown() == expected
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert ",".join(str(gpu.index) for gpu in found) == expected
    assert machine.closed


def test_a_gpu_that_does_not_tell_its_memory_is_taken_last():
    show_only("auto:3", look=lambda: Machine(used=(100, 30_000, None, 5)))
    assert shown() == "3,0,1"


@pytest.mark.parametrize(
    ("before", "wanted", "expected"),
    [
        ("2,3", [3], "3"),
        ("1,0", "auto:2", "1,0"),
        ("1,0,2", "auto:2", "2,0"),
        (f"{UUIDS[1]},GPU-cc", [2, 1], "2,1"),
    ],
)
def test_only_what_this_process_may_use(monkeypatch, before, wanted, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    show_only(wanted, look=Machine)
    assert shown() == expected
    show_only(wanted, look=Machine)
    assert shown() == expected, "a second run in this process finds what the first one chose"


def test_a_part_of_a_gpu_goes_by_its_uuid(monkeypatch):
    machine = Machine()
    part = GpuFacts(1, "MIG-1234", "A100", mig="1g.5gb", memory_total_mib=5000)
    machine.gpus = (machine.gpus[0], GpuFacts(1, UUIDS[1], "A100", split=True), part)
    (found,) = show_only([1], look=lambda: machine)
    assert shown() == "MIG-1234"
    assert found == part


class SplitMachine(Machine):
    """A whole GPU with 10 GiB free, and one that is split into two instances and has none to itself."""

    def __init__(self) -> None:
        super().__init__(used=(30_720, 0))
        self.gpus = (
            self.gpus[0],
            GpuFacts(1, UUIDS[1], "A100", split=True),
            *(
                GpuFacts(1, f"MIG-{name}", "A100", mig=size, memory_total_mib=mib, whole=UUIDS[1])
                for name, size, mib in (("1111-1", "1g.5gb", 5_000), ("2222-2", "2g.20gb", 20_000))
            ),
            GpuFacts(2, UUIDS[2], "A100", split=True),
        )

    def samples(self, gpus):
        used = {UUIDS[0]: 30_720, "MIG-1111-1": 0, "MIG-2222-2": 1_000}
        return [GpuSample(gpu, memory_used_mib=used[gpu.uuid]) for gpu in gpus]


@pytest.mark.parametrize(
    ("before", "wanted", "expected"),
    [
        (None, ["MIG-2222-2"], "MIG-2222-2"),
        (None, "MIG-2222", "MIG-2222-2"),
        (None, [UUIDS[0]], "0"),
        (None, [0], "0"),
        (None, "auto:1", "MIG-2222-2"),
        ("0,MIG-1111-1", "auto", "0"),
        ("MIG-1111-1", [1], "MIG-1111-1"),
        ("MIG-1111-1,MIG-2222-2", ["MIG-2222-2"], "MIG-2222-2"),
        ("1", ["MIG-2222-2"], "MIG-2222-2"),
    ],
)
def test_an_instance_of_a_split_gpu(monkeypatch, before, wanted, expected):
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    show_only(wanted, look=SplitMachine)
    assert shown() == expected
    show_only(wanted, look=SplitMachine)
    assert shown() == expected


@pytest.mark.parametrize(
    ("before", "wanted", "message"),
    [
        (None, [1], r"GPU 1 is split into MIG instances: which one\?(.|\n)*MIG-1111-1 \(1g\.5gb\), MIG-2222-2 \(2g"),
        (None, [UUIDS[1]], r"which one\?(.|\n)*fix: +device\.gpus=\[MIG-1111-1\]"),
        (None, [2], "GPU 2 is split by MIG, without an instance to compute on"),
        (None, ["MIG-1111-1", "MIG-2222-2"], "a process computes on one MIG instance, and on no other GPU beside it"),
        (None, [0, "MIG-1111-1"], "on no other GPU beside it(.|\n)*need whole ones"),
        (None, ["MIG-1111-1", "MIG-1"], "a GPU is named twice"),
        (None, ["MIG-9"], r"there is no MIG-9 here(.|\n)*0 \(A100\), MIG-1111-1 \(A100 MIG 1g\.5gb\)"),
        (None, "auto:2", "there are only 1 GPU to choose from; a process computes on one MIG instance at most"),
        ("0", ["MIG-1111-1"], r"MIG-1111-1 is not among those that this process may use \(CUDA_VISIBLE_DEVICES=0\)"),
    ],
)
def test_an_instance_that_cannot_be_chosen(monkeypatch, before, wanted, message):
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    with pytest.raises(UserError, match=message):
        show_only(wanted, look=SplitMachine)
    assert shown() == before


def test_of_an_instance_cuda_may_tell_the_uuid_of_the_whole():
    chosen = show_only(["MIG-2222-2"], look=SplitMachine)
    for told in ("2222-2", UUIDS[1].removeprefix("GPU-")):
        check_shown(chosen, 1, {0: told})
        (line,) = mapping([0], {0: told}, look=SplitMachine)
        assert line == "cuda:0 is GPU 1 (A100 MIG 2g.20gb, MIG-2222-2)"
    with pytest.raises(UserError, match="VISIBLE_DEVICES=MIG-2222-2"):
        check_shown(chosen, 1, {0: "1111-1"})


@pytest.mark.parametrize(
    ("before", "wanted", "message"),
    [
        (None, [0, 4], r"gpus: there is no GPU 4 here(.|\n)*0 \(A100\), 1 \(A100\)(.|\n)*device=cpu runs on"),
        (
            "1,2",
            [0],
            r"GPU 0 is not among those that this process may use \(CUDA_VISIBLE_DEVICES=1,2\)(.|\n)*1 \(A100\)",
        ),
        (None, "auto:5", r"there are only 4 GPUs to choose from\n"),
        ("1,2", "auto:3", r"there are only 2 GPUs to choose from \(CUDA_VISIBLE_DEVICES=1,2\)"),
        ("", "auto", "there are only 0 GPUs"),
        (None, "freest", "not a choice of GPUs"),
        (None, [], "this chooses no GPU"),
        (None, [1, 1], "a GPU is named twice"),
        (None, [-1], "not the numbers or UUIDs of GPUs"),
        (None, 3, r"gpus(.|\n)*a list of GPU numbers such as \[0, 2\]"),
    ],
)
def test_gpus_that_are_not_there_are_refused(monkeypatch, before, wanted, message):
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    machine = Machine()
    with pytest.raises(UserError, match=message):
        show_only(wanted, look=lambda: machine)
    assert shown() == before


def test_a_machine_without_gpus_says_how_to_go_on():
    with pytest.raises(UserError, match=r"there is no NVIDIA GPU here \(no driver\)(.|\n)*device=cpu runs on the CPU"):
        show_only([0], look=lambda: Source("no driver"))


def test_numbers_in_an_unknown_order_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    mixed = Machine(used=(0, 0), names=("GT 710", "A100"))
    with pytest.raises(UserError, match=r"counts the fastest GPU first(.|\n)*CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        show_only([1], look=lambda: mixed)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    show_only([1], look=lambda: mixed)
    assert shown() == "1"


def seen(*order: int) -> dict[int, str]:
    return {number: UUIDS[index].removeprefix("GPU-") for number, index in enumerate(order)}


def test_a_choice_that_came_too_late_is_noticed():
    chosen = show_only([2, 0], look=Machine)
    check_shown(chosen, 2, seen(2, 0))
    check_shown(chosen, 2, {})
    for count, uuids in ((4, seen(0, 1, 2, 3)), (2, seen(0, 2)), (2, seen(0, 1))):
        with pytest.raises(UserError, match=rf"PyTorch sees {count} GPUs that are not those(.|\n)*VISIBLE_DEVICES=2,0"):
            check_shown(chosen, count, uuids)


def test_the_mapping_is_told_by_uuid():
    show_only([2, 0], look=Machine)
    lines = [f"cuda:0 is GPU 2 (A100, {UUIDS[2]})", f"cuda:1 is GPU 0 (A100, {UUIDS[0]})"]
    assert mapping(range(2), seen(2, 0), look=Machine) == lines
    assert mapping(range(2), {}, look=Machine) == lines, "without PyTorch's word, by what was set"
    assert mapping(range(2), seen(2, 0), look=Source) == []


def machine_of_torch(monkeypatch, count: int, uuids: dict[int, str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(placement, "cuda_uuids", lambda devices: uuids)
    for name in ("show_only", "mapping", "overlooked"):
        monkeypatch.setattr(placement, name, _looking(getattr(placement, name)))


def _looking(function):
    return lambda *args: function(*args, look=Machine)


UNSEEN = "the driver shows 4 NVIDIA GPUs (A100, …), but PyTorch sees none: this PyTorch was built without CUDA"


def test_a_name_among_chosen_gpus(monkeypatch):
    machine_of_torch(monkeypatch, 2, seen(2, 0))
    for name, number in (("auto", 0), ("cuda", 0), ("cuda:1", 1)):
        device, lines = located(name, [2, 0])
        assert device == torch.device("cuda", number)
        assert [line.split(" (")[0] for line in lines] == ["cuda:0 is GPU 2", "cuda:1 is GPU 0"]


def test_the_cpu_needs_no_gpus(monkeypatch):
    machine_of_torch(monkeypatch, 0, {})
    assert located("cpu", [7]) == (torch.device("cpu"), [])
    assert shown() is None


def test_the_cpu_is_not_taken_without_a_word_where_the_driver_shows_gpus(monkeypatch):
    machine_of_torch(monkeypatch, 0, {})
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert located("auto", None) == (torch.device("cpu"), [f"device.name=auto takes the CPU: {UNSEEN}"])
    monkeypatch.setattr(placement, "overlooked", lambda: overlooked(look=Source))
    assert located("auto", None) == (torch.device("cpu"), [])


@pytest.mark.parametrize(
    ("name", "gpus", "key"), [("auto", "auto:2", "gpus"), ("cuda", [0], "gpus"), ("cuda", None, "name")]
)
def test_gpus_that_pytorch_does_not_see_are_refused_under_the_key_that_asks_for_them(monkeypatch, name, gpus, key):
    machine_of_torch(monkeypatch, 0, {})
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(UserError) as refused:
        located(name, gpus)
    assert (refused.value.what, refused.value.argument) == (UNSEEN, key)
    assert refused.value.received == (gpus or name)


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("", "CUDA_VISIBLE_DEVICES is set and empty, which hides all of them"),
        ("7", "CUDA_VISIBLE_DEVICES=7 names none"),
    ],
)
def test_why_pytorch_sees_no_gpu(monkeypatch, variable, reason):
    machine_of_torch(monkeypatch, 0, {})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert why_no_cuda() == reason


def test_other_peoples_choice_is_told_too(monkeypatch):
    machine_of_torch(monkeypatch, 1, seen(3))
    assert located("cuda", None) == (torch.device("cuda", 0), [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert located("cuda", None)[1] == [f"cuda:0 is GPU 3 (A100, {UUIDS[3]})"]


def test_with_the_library_of_the_driver(monkeypatch):
    cards = [Card(uuid=UUIDS[i], used=used * 2**20, total=40 * GIB) for i, used in enumerate((30_000, 20))]
    install(monkeypatch, fake_nvml(cards))
    show_only("auto:1")
    assert shown() == "1"
