from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.checkpoint.weights import load_weights, read_weights
from lightkit.common.errors import UserError
from tests.checkpoint.parts import Average, Nothing, net, same


def gathered(model: nn.Module, *, average: bool = False) -> dict:
    parts = {"scheduler": Nothing(), "precision": Nothing(), "state": Nothing(), "callbacks": {}, "metrics": {}}
    optimizer = torch.optim.SGD(model.parameters())
    return content.gather(model=model, optimizer=optimizer, ema=Average(model) if average else None, **parts)


def written(path: Path, value: object, **options) -> Path:
    torch.save(value, path, **options)
    return path


def a_lightkit_run(folder: Path, model: nn.Module) -> Path:
    store = CheckpointStore(folder / "run" / "checkpoints", mode="max")
    store.save(gathered(model), step=1, value=0.9)
    store.save(gathered(net(9)), step=2, value=0.1)
    return folder / "run"


def a_sharded_model(folder: Path, model: nn.Module) -> Path:
    state, names = model.state_dict(), {}
    for number, name in enumerate(state):
        names[name] = f"model-{number % 2}.safetensors"
    for file in set(names.values()):
        save_file({name: state[name] for name in names if names[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def prefixed(model: nn.Module, prefix: str) -> dict:
    return {prefix + name: tensor for name, tensor in model.state_dict().items()}


def a_state_of_cuda(path: Path, model: nn.Module) -> Path:
    """A file whose tensors were on a GPU, written without one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        return written(path, model.state_dict())


LIGHTNING = {
    "pytorch-lightning_version": "2.5.0",
    "epoch": 3,
    "optimizer_states": [{"state": {0: {"m": torch.ones(1)}}}],
}

# What is given -> (how it is made, its kind, where in it the weights are)
SOURCES = {
    "state dict": (lambda p, m: written(p / "x.pt", m.state_dict()), "state dict", None),
    "old format": (
        lambda p, m: written(p / "x.pth", m.state_dict(), _use_new_zipfile_serialization=False), "state dict", None,
    ),
    "cuda": (lambda p, m: a_state_of_cuda(p / "x.pt", m), "state dict", None),
    "data parallel": (lambda p, m: written(p / "x.pt", nn.DataParallel(m).state_dict()), "state dict", None),
    "compiled": (lambda p, m: written(p / "x.pt", prefixed(m, "_orig_mod.")), "state dict", None),
    "training script": (
        lambda p, m: written(p / "x.tar", {"epoch": 1, "model_state_dict": m.state_dict(), "loss": torch.ones(())}),
        "training file", "model_state_dict",
    ),
    "nested": (
        lambda p, m: written(p / "x.pt", {"model": {"state_dict": m.state_dict(), "cfg": "x"}}),
        "training file", "model.state_dict",
    ),
    "lightning": (
        lambda p, m: written(p / "x.ckpt", LIGHTNING | {"state_dict": prefixed(m, "model.")}),
        "Lightning checkpoint", "state_dict",
    ),
    "timm": (
        lambda p, m: written(
            p / "x.pth.tar",
            {"arch": "net", "args": argparse.Namespace(lr=1.0), "state_dict": net(8).state_dict(),
             "state_dict_ema": prefixed(m, "module.")},
        ),
        "training file", "state_dict_ema",
    ),
    "hugging face": (
        lambda p, m: save_file(m.state_dict(), p / "model.safetensors") or p, "safetensors", None,
    ),
    "hugging face, pickled": (lambda p, m: written(p / "pytorch_model.bin", m.state_dict()).parent, "state dict", None),
    "hugging face, in parts": (a_sharded_model, "safetensors", None),
    "lightkit run": (a_lightkit_run, "lightkit checkpoint", "model"),
    "lightkit checkpoints": (lambda p, m: a_lightkit_run(p, m) / "checkpoints", "lightkit checkpoint", "model"),
    "lightkit file": (
        lambda p, m: CheckpointStore(p).save(gathered(m), step=1), "lightkit checkpoint", "model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_weights_of_every_kind_end_up_in_the_model(tmp_path, source):
    make, kind, key = SOURCES[source]
    original, model = net(1), net(2)
    weights = read_weights(make(tmp_path, original))
    assert (weights.kind, weights.key) == (kind, key)
    assert all(not tensor.requires_grad and tensor.device.type == "cpu" for tensor in weights.state.values())
    report = load_weights(model, weights)
    assert same(model, original)
    assert set(report.loaded) == set(original.state_dict())


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: _Compiled(model)], ids=["data parallel", "compiled"])
def test_the_model_may_be_wrapped_too(tmp_path, wrap):
    original = net(1)
    for state in (original.state_dict(), prefixed(original, "module."), prefixed(original, "_orig_mod.")):
        model = net(2)
        load_weights(wrap(model), read_weights(written(tmp_path / "x.pt", state)))
        assert same(model, original)


class _Compiled(nn.Module):
    """Names as `torch.compile` makes them, which would take a compiler."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def test_a_moving_average_comes_first(tmp_path):
    original = net(1)
    path = CheckpointStore(tmp_path).save(gathered(original, average=True), step=1)
    averaged = read_weights(path)
    assert averaged.key == "moving average"
    assert torch.equal(averaged.state["head.bias"], original.head.bias + 1)
    assert torch.equal(averaged.state["layers.norm.num_batches_tracked"], torch.tensor(0))
    plain = read_weights(path, key="model")
    assert torch.equal(plain.state["head.bias"], original.head.bias)
    assert plain.kind == "lightkit checkpoint"
    assert "head.bias" in read_weights(path, key="ema.weights").state


def test_a_mapping_renames(tmp_path):
    original, model = net(1), net(2)
    theirs = prefixed(original, "module.bert.").items()
    named = {name.replace("layers", "encoder").replace("head", "cls"): tensor for name, tensor in theirs}
    path = written(tmp_path / "x.bin", named)
    mapping = {"re:^bert\\.": "", "encoder.*": "layers.*", "cls.*": "head.*"}
    load_weights(model, read_weights(path, mapping=mapping))
    assert same(model, original)
    dropped = read_weights(path, mapping=mapping | {"head.*": None})
    assert not [name for name in dropped.state if name.startswith("head")]


def test_a_swapped_checkpoint_is_found_by_the_manifest(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2)
    path = store.save(gathered(net(1)), step=1)
    other = store.save(gathered(net(2)), step=2)
    path.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match="the checksum differs"):
        read_weights(path)


def test_a_wrong_key_is_told(tmp_path):
    path = written(tmp_path / "x.pt", {"model": net().state_dict(), "epoch": 3})
    for key in ("modl", "model.x", "epoch.y"):
        with pytest.raises(UserError, match="the file has no such entry"):
            read_weights(path, key=key)
    with pytest.raises(UserError, match="there are no tensors under 'epoch'"):
        read_weights(path, key="epoch")


def test_timm_writes_files_that_open(tmp_path):
    pytest.importorskip("timm")
    from timm.utils import CheckpointSaver, ModelEmaV2

    original, model = net(1), net(2)
    optimizer = torch.optim.SGD(original.parameters(), lr=0.1)
    options = {"args": argparse.Namespace(model="net", lr=0.1), "model_ema": ModelEmaV2(original)}
    CheckpointSaver(original, optimizer, checkpoint_dir=str(tmp_path), **options).save_checkpoint(0, metric=0.5)
    weights = read_weights(tmp_path / "last.pth.tar")
    assert weights.key == "state_dict_ema"
    load_weights(model, weights)
    assert same(model, original)
