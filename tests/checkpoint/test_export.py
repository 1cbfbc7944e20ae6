from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from lightkit.checkpoint import files
from lightkit.checkpoint.export import export, write_checkpoint, write_model, write_safetensors, write_state_dict
from lightkit.checkpoint.formats import open_file
from lightkit.checkpoint.store import CheckpointStore
from lightkit.checkpoint.weights import load_weights, read_weights
from lightkit.common.errors import UserError
from tests.checkpoint.parts import net, same
from tests.checkpoint.test_weights import gathered


@pytest.mark.parametrize(
    ("kind", "name"), [("weights", "weights.pt"), ("safetensors", "weights.safetensors"), ("model", "model.pt")]
)
def test_every_kind_comes_back(tmp_path, kind, name):
    original, model = net(1), net(2)
    for _ in range(2):  # a second export replaces the first
        path = export(kind, tmp_path, original)
    assert path == tmp_path / name
    assert [file.name for file in tmp_path.iterdir()] == [name]
    load_weights(model, read_weights(path, trust=kind == "model"))
    assert same(model, original)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("kind", ["weights", "model"])
def test_the_protocol_of_pickle_is_the_one_asked_for(tmp_path, kind, protocol):
    path = export(kind, tmp_path, net(1), protocol=protocol)
    with zipfile.ZipFile(path) as archive:
        assert archive.read(f"{archive.namelist()[0].partition('/')[0]}/data.pkl")[1] == protocol
    model = net(2)
    load_weights(model, read_weights(path, trust=True))
    assert same(model, net(1))


@pytest.mark.parametrize("kind", ["weights", "safetensors", "model"])
def test_another_state_than_the_models_is_written(tmp_path, kind):
    model, back = net(1), net(3)
    path = export(kind, tmp_path, model, state=net(2).state_dict())
    load_weights(back, read_weights(path, trust=kind == "model"))
    assert same(back, net(2))
    assert same(model, net(1))
    assert model.head.weight.requires_grad


def test_a_state_of_another_model_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"the state to write: the weights were not loaded.*\n.*head.weight"):
        export("model", tmp_path, net(1), state=net(1, classes=5).state_dict())
    assert list(tmp_path.iterdir()) == []


def test_tied_and_strided_weights_survive_safetensors(tmp_path):
    tied = torch.arange(6.0).view(2, 3)
    state = {"a": tied, "b": tied, "t": tied.T, "part": tied[0], "half": tied.bfloat16(), "note": "text"}
    write_safetensors(state, tmp_path / "x.safetensors")
    back = read_weights(tmp_path / "x.safetensors").state
    assert sorted(back) == ["a", "b", "half", "part", "t"]
    assert all(torch.equal(back[name], state[name]) for name in back)


def test_a_whole_checkpoint_is_copied_in_todays_layout(tmp_path):
    source = CheckpointStore(tmp_path / "store").save(gathered(net(1), average=True), step=3, value=0.5, epoch=1)
    write_checkpoint(open_file(source), tmp_path / "copy.pt")
    back = open_file(tmp_path / "copy.pt")
    assert back["saved"] == {"step": 3, "value": 0.5, "epoch": 1}
    assert back["ema"]["steps"] == 7
    assert torch.equal(back["model"]["head.bias"], net(1).head.bias)
    with pytest.raises(UserError, match="only a lightkit checkpoint holds the state of a run"):
        write_checkpoint({"a": torch.ones(1)}, tmp_path / "other.pt")


def test_a_model_that_cannot_be_pickled_is_told(tmp_path):
    class Local(nn.Module):
        pass

    with pytest.raises(UserError, match=r"the model cannot be written whole: .*Local"):
        write_model(Local(), tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["safetensors", "model"])
def test_a_full_disk_keeps_the_file_before(tmp_path, monkeypatch, kind):
    path = export(kind, tmp_path, net(1))
    before = files.sha256(path)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot be written: No space left on device"):
        export(kind, tmp_path, net(2))
    assert files.sha256(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_other_kinds_and_folders_are_told(tmp_path):
    for kind in ("onnx", "adapter"):  # the second needs a base
        with pytest.raises(UserError, match="kind: no such kind of export"):
            export(kind, tmp_path, net())
    with pytest.raises(UserError, match="cannot be written: No such file"):
        write_state_dict({}, Path(tmp_path / "none" / "x.pt"))
