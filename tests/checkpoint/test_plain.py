from __future__ import annotations

import collections
import io

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from lightkit.checkpoint.files import to_plain


class Loud(str):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (OmegaConf.create([1, 2]), r"checkpoint\.a\.b\[1\] is a omegaconf\.listconfig\.ListConfig"),
        (OmegaConf.create({"x": 1}), r"checkpoint\.a\.b\[1\] is a omegaconf"),
        (np.float64(1.0), r"checkpoint\.a\.b\[1\] is a numpy\.float64"),
        (np.ones(2), r"is a numpy\.ndarray"),
        (Loud("x"), "Loud"),
        (torch.float32, "torch.dtype"),
        ({1, 2}, "builtins.set"),
        (lambda: None, "function"),
        (collections.Counter("aab"), "Counter"),
        (torch.Size([1]), "torch.Size"),
        (b"", "is empty bytes, which torch.load refuses"),
    ],
)
def test_other_types_are_refused_by_their_path(value, message):
    with pytest.raises(TypeError, match=message):
        to_plain({"a": {"b": [0, value]}})


def test_other_keys_are_refused():
    with pytest.raises(TypeError, match=r"checkpoint\.a has the key 1\.5 of type float"):
        to_plain({"a": {1.5: 0}})


def test_tensor_subclasses_are_refused():
    class Mine(torch.Tensor):
        pass

    with pytest.raises(TypeError, match=r"checkpoint\.a is a Mine; convert it to a plain tensor"):
        to_plain({"a": torch.ones(2).as_subclass(Mine)})


def test_parameters_become_bare_tensors():
    plain = to_plain({"a": torch.nn.Parameter(torch.ones(2)), "b": collections.OrderedDict(c=1)})
    assert type(plain["a"]) is torch.Tensor
    assert not plain["a"].requires_grad
    assert type(plain["b"]) is dict


def test_a_view_does_not_drag_its_storage_along():
    file = io.BytesIO()
    torch.save(to_plain({"a": torch.zeros(100_000)[:10]}), file)
    assert file.tell() < 10_000


def test_shared_tensors_are_written_once():
    weight = torch.zeros(10_000)
    file = io.BytesIO()
    torch.save(to_plain({"a": weight, "b": weight}), file)
    assert file.tell() < 50_000


def test_sparse_and_empty_tensors_pass():
    plain = to_plain({"a": torch.eye(3).to_sparse(), "b": torch.empty(0)})
    assert plain["a"].is_sparse
