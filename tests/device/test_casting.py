from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from lightkit.checkpoint.export import write_model
from lightkit.device.casting import ChannelsLast, FullOutputs, InputsAs, channels_last, floats_as, weights_as


def test_only_floats_change():
    value = {
        "x": torch.ones(1),
        "n": (torch.ones(1, dtype=torch.int64), [torch.ones(1, dtype=torch.bool)]),
        "t": "text",
    }
    found = floats_as(torch.float64, value)
    assert found["x"].dtype == torch.float64
    assert found["n"][0].dtype == torch.int64
    assert found["n"][1][0].dtype == torch.bool
    assert found["t"] == "text"
    assert value["x"].dtype == torch.float32, "the original is left alone"


def test_weights_change_in_place_and_keep_their_ties():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model.register_parameter("turn", nn.Parameter(torch.ones(1, dtype=torch.complex64)))
    weight = model[0].weight
    weights_as(torch.bfloat16, model)
    assert model[0].weight is model[1].weight is weight
    assert weight.dtype == model[2].running_mean.dtype == torch.bfloat16
    assert model[2].num_batches_tracked.dtype == torch.int64
    assert model.turn.dtype == torch.complex64


@pytest.mark.parametrize(
    ("shape", "format"), [((2, 3, 4, 5), torch.channels_last), ((2, 3, 4, 5, 6), torch.channels_last_3d)]
)
def test_images_and_volumes_get_their_channels_last(shape, format):
    turned = channels_last(torch.rand(shape))
    assert turned.is_contiguous(memory_format=format)
    assert turned.shape == shape


@pytest.mark.parametrize("tensor", [torch.rand(2, 3), torch.zeros(2, 3, 4, 5, dtype=torch.int64)])
def test_what_is_no_picture_stays(tensor):
    assert channels_last(tensor) is tensor


def test_a_model_is_written_and_copied_without_what_belongs_to_the_run(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    own = model.register_forward_hook(kept)
    model.register_forward_hook(FullOutputs())
    model.register_forward_pre_hook(InputsAs(torch.float32), with_kwargs=True)
    model[0].register_forward_pre_hook(ChannelsLast(), with_kwargs=True)
    write_model(model, tmp_path / "model.pt")
    assert b"lightkit" not in (tmp_path / "model.pt").read_bytes()
    found = torch.load(tmp_path / "model.pt", weights_only=False)
    assert list(found._forward_hooks.values()) == [kept]
    assert torch.equal(found(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert len(model._forward_hooks) == 2, "the model itself keeps them"
    own.remove()
    torch.save(copy.deepcopy(model), io.BytesIO())


def kept(_module, _inputs, outputs):
    return outputs
