from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from lightkit.common.errors import UserError
from lightkit.device.placement import Placement, choose

Pair = namedtuple("Pair", "x y")
META = Placement(torch.device("meta"))
CPU = Placement(torch.device("cpu"))


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
        (Graph(one()), lambda b: b.nodes),
        ((one(), Graph(one())), lambda b: b[1].nodes),
    ],
)
def test_nested_batches_move_and_keep_their_type(batch, pick):
    moved = META.move(batch)
    assert type(moved) is type(batch)
    assert pick(moved).device.type == "meta"
    assert pick(batch).device.type == "cpu", "the original is left alone"


def test_what_holds_no_tensor_passes():
    for value in (None, 3, "text", {"a": 1}, [1, "b"], range(3), Sample):
        assert META.move(value) == value


def test_keys_defaults_and_fields_stay():
    assert META.move(defaultdict(list, a=one()))["new"] == []
    moved = META.move(Sample(one(), "n"))
    assert (moved.name, moved.size) == ("n", 3)


def test_packed_sequences_move():
    moved = CPU.move((pack_sequence([torch.ones(3), torch.ones(2)]), one()))
    assert isinstance(moved[0], PackedSequence)


def test_a_batch_in_place_is_not_rebuilt():
    batch = (one(), one())
    assert CPU.move(batch) is batch


def test_pinning_pays_only_for_gpus():
    assert not CPU.pins_memory
    assert Placement(torch.device("cuda", 0)).pins_memory


def _machine(monkeypatch, *, gpus: int = 0, apple: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
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
    _machine(monkeypatch, gpus=gpus, apple=apple)
    assert str(choose(name)) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("cuda", 0, r"name: there is no CUDA GPU here(.|\n)*choices:  cpu(.|\n)*device=cpu runs on the CPU"),
        ("cuda:2", 2, r"there is no GPU number 2 here(.|\n)*choices:  cpu, cuda:0, cuda:1"),
        ("mps", 0, r"there is no Apple GPU here(.|\n)*device=cpu"),
        ("gpu", 0, r"no such device(.|\n)*choices:  auto, cpu, cuda"),
        ("cuda:x", 2, "no such device"),
        ("cuda:", 0, "there is no CUDA GPU here"),
        ("cpu:0", 0, "no such device"),
        ("", 0, "no such device"),
    ],
)
def test_missing_devices_are_never_replaced_silently(monkeypatch, name, gpus, message):
    _machine(monkeypatch, gpus=gpus)
    with pytest.raises(UserError, match=message):
        choose(name)


def test_a_build_without_cuda_says_so(monkeypatch):
    _machine(monkeypatch)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(UserError, match="this PyTorch was built without CUDA"):
        choose("cuda")


def test_the_description_names_the_device():
    assert CPU.describe().startswith("cpu: ")
    assert META.describe() == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_pinned_batches_arrive_whole():
    placement = Placement(choose("cuda"))
    batch = (torch.arange(1000.0).pin_memory(), {"y": torch.arange(1000).pin_memory()})
    x, rest = placement.move(batch)
    assert torch.equal(x.cpu(), batch[0])
    assert torch.equal(rest["y"].cpu(), batch[1]["y"])
    assert "GiB" in placement.describe()
