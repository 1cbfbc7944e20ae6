"""Where batches go, which device a name means, and what a device does not do."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from lightkit.device.engine import check_support
from lightkit.device.placement import Placement, choose
from tests.refused import refused

Pair = namedtuple("Pair", "x y")
META = Placement(torch.device("meta"))
CPU = Placement(torch.device("cpu"))
GPU, APPLE = torch.device("cuda", 0), torch.device("mps", 0)


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str
    size: int = dataclasses.field(init=False, default=3)


class Graph:
    def __init__(self, nodes):
        self.nodes = nodes

    def to(self, device):
        return Graph(self.nodes.to(device))


def one() -> torch.Tensor:
    return torch.ones(2)


@pytest.mark.parametrize(
    ("batch", "pick"),
    [
        (one(), lambda b: b),
        ((one(), one()), lambda b: b[1]),
        ([one(), "text"], lambda b: b[0]),
        (Pair(one(), {"mask": one()}), lambda b: b.y["mask"]),
        ({"a": [(one(),)]}, lambda b: b["a"][0][0]),
        (OrderedDict(a=one()), lambda b: b["a"]),
        (defaultdict(list, a=one()), lambda b: b["a"]),
        (UserDict(a=one()), lambda b: b["a"]),
        (Sample(one(), "n"), lambda b: b.x),
        ((one(), Graph(one())), lambda b: b[1].nodes),
    ],
)
def test_nested_batches_move_and_keep_their_type(batch, pick):
    moved = META.move(batch)
    assert type(moved) is type(batch)
    assert pick(moved).device.type == "meta"
    assert pick(batch).device.type == "cpu", "the original is left alone"


def test_what_holds_no_tensor_passes_and_keys_defaults_and_fields_stay():
    for value in (None, 3, "text", {"a": 1}, [1, "b"], range(3), Sample):
        assert META.move(value) == value
    assert META.move(defaultdict(list, a=one()))["new"] == []
    moved = META.move(Sample(one(), "n"))
    assert (moved.name, moved.size) == ("n", 3)
    packed, _ = CPU.move((pack_sequence([torch.ones(3), torch.ones(2)]), one()))
    assert isinstance(packed, PackedSequence)
    batch = (one(), one())
    assert CPU.move(batch) is batch, "what is in place is not rebuilt"
    assert (CPU.pins_memory, Placement(GPU).pins_memory) == (False, True)
    assert CPU.describe().startswith("cpu: ")
    assert META.describe() == "meta"


def machine(monkeypatch, *, gpus: int = 0, apple: bool = False, built: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)


@pytest.mark.parametrize(
    ("name", "gpus", "apple", "expected"),
    [
        ("auto", 0, False, "cpu"),
        ("auto", 2, False, "cuda:0"),
        ("auto", 0, True, "mps:0"),
        ("cpu", 2, False, "cpu"),
        ("cuda", 1, False, "cuda:0"),
        ("cuda:1", 2, False, "cuda:1"),
        ("mps", 0, True, "mps:0"),
    ],
)
def test_devices_by_name(monkeypatch, name, gpus, apple, expected):
    machine(monkeypatch, gpus=gpus, apple=apple)
    assert str(choose(name)) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "text"),
    [
        ("cuda", 0, "name: there is no CUDA GPU here … choices:  cpu … device=cpu runs on the CPU"),
        ("cuda:2", 2, "there is no GPU number 2 here … choices:  cpu, cuda:0, cuda:1"),
        ("mps", 0, "there is no Apple GPU here … device=cpu"),
        ("gpu", 0, "no such device … choices:  auto, cpu, cuda"),
        ("cuda:x", 2, "no such device"),
        ("cuda:", 0, "there is no CUDA GPU here"),
        ("cpu:0", 0, "no such device"),
    ],
)
def test_missing_devices_are_never_replaced_silently(monkeypatch, name, gpus, text):
    machine(monkeypatch, gpus=gpus)
    refused(lambda: choose(name), text)
    machine(monkeypatch, gpus=0, built=False)
    refused(lambda: choose("cuda"), "this PyTorch was built without CUDA")


@pytest.mark.gpu
def test_pinned_batches_arrive_whole():
    placement = Placement(choose("cuda"))
    batch = (torch.arange(1000.0).pin_memory(), {"y": torch.arange(1000).pin_memory()})
    x, rest = placement.move(batch)
    assert torch.equal(x.cpu(), batch[0])
    assert torch.equal(rest["y"].cpu(), batch[1]["y"])
    assert "GiB" in placement.describe()


@pytest.mark.parametrize(
    ("capability", "name", "line"),
    [
        ((7, 5), "tf32", "device.precision=tf32: this GPU has compute capability 7.5, and TF32 comes with 8.0"),
        ((7, 5), "bf16", "bfloat16 comes with 8.0 (Ampere): emulated, slower than fp16"),
        ((7, 5), "bf16-true", "emulated"),
        ((6, 1), "fp16", "fast fp16 comes with 7.0"),
        ((9, 0), "fp32", "exact; tf32 and bf16 are several times faster on this GPU"),
        ((9, 0), "tf32", ""),
        ((9, 0), "bf16", ""),
        ((8, 0), "bf16-true", ""),
        ((7, 0), "fp16", ""),
        ((7, 5), "fp32", ""),
        ((6, 1), "fp64", ""),
    ],
)
def test_what_a_gpu_does_not_do(monkeypatch, capability, name, line):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert [line in said for said in check_support(name, GPU)] == [True] * bool(line)


def test_what_cannot_be_computed_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (3, 5))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    for name in ("bf16", "bf16-true"):
        refused(lambda name=name: check_support(name, GPU), "precision: this GPU has no bfloat16 … precision=fp32")
    refused(lambda: check_support("fp64", APPLE), "Apple's GPUs have no float64")
    assert "TF32 is a format of NVIDIA's GPUs, not of mps" in check_support("tf32", APPLE)[0]
    assert check_support("fp16", APPLE) == check_support("fp32", APPLE) == []


@pytest.mark.parametrize(
    ("kind", "bf16", "lines"), [("AVX2", False, 1), ("AVX512", True, 0), ("DEFAULT", False, 0), ("AVX2", None, 0)]
)
def test_what_processors_do_not_do(monkeypatch, kind, bf16, lines):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kind)
    for name, known in (("_is_avx512_bf16_supported", bf16), ("_is_amx_tile_supported", False)):
        monkeypatch.setattr(torch.cpu, name, lambda known=known: known, raising=False)
        if bf16 is None:  # a PyTorch that does not tell is not doubted
            monkeypatch.delattr(torch.cpu, name)
    for name in ("bf16", "bf16-true"):
        assert len(check_support(name, CPU.device)) == lines
    assert "CPUs compute fp16 slowly" in check_support("fp16", CPU.device)[0]
    assert "TF32 is a format of NVIDIA's GPUs: computed in fp32" in check_support("tf32", CPU.device)[0]
    assert check_support("fp32", CPU.device) == check_support("fp64", CPU.device) == []
