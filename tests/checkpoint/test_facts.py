from __future__ import annotations

import os

import pytest
import torch

from lightkit.checkpoint.facts import amount, checkpoints, describe, size_text
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from tests.checkpoint.parts import net
from tests.checkpoint.test_weights import LIGHTNING, gathered, written


def test_a_checkpoint_in_words(tmp_path):
    saved = gathered(net(1), average=True) | {"config": "name: demo\n", "callbacks": {"stop": {"count": 2}, "x": {}}}
    path = CheckpointStore(tmp_path).save(saved, step=120, value=0.98, epoch=12)
    facts = describe(path)
    lines = dict(facts.lines)
    assert lines["kind"] == "lightkit checkpoint, weights in moving average"
    assert lines["size"].endswith("kB, checksum as in the manifest")
    assert lines["format"] == f"version 1, written with PyTorch {torch.__version__}"
    assert lines["step"] == "120, 12 epochs done"
    assert lines["value"] == "0.98"
    assert lines["optimizer"] == "torch.optim.sgd.SGD, 1 group, 0 numbers in 0 tensors"
    assert lines["average"] == "over 7 steps"
    assert lines["also"] == "callbacks.stop"
    assert lines["weights"] == "64 numbers in 9 tensors (float32, int64)"
    assert facts.tensors[0] == ("layers.a.weight", "5×4", "float32")
    assert facts.tensors[6] == ("layers.norm.num_batches_tracked", "single", "int64")
    assert facts.config == "name: demo\n"
    lines = dict(describe(CheckpointStore(tmp_path).save(gathered(net()), step=130)).lines)
    assert (lines["step"], lines["value"]) == ("130", "not measured at this step")


def test_a_foreign_file_in_words(tmp_path):
    state = {f"model.{name}": t for name, t in net().state_dict().items()} | {"x._extra_state": 3}
    facts = describe(written(tmp_path / "x.ckpt", LIGHTNING | {"state_dict": state}))
    lines = dict(facts.lines)
    assert lines["kind"] == "Lightning checkpoint, weights in state_dict"
    assert lines["besides"] == "x._extra_state"
    assert "the archive's own checksums are right" in lines["size"]
    assert facts.config == ""


def test_the_checkpoints_of_a_folder(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3, mode="min")
    for step, value in [(1, 0.2), (2, 0.1), (3, None)]:
        store.save({"x": torch.ones(2)}, step=step, value=value, epoch=step)
    os.truncate(tmp_path / "step-00000001.pt", 10)
    rows = checkpoints(tmp_path)
    assert [(row["step"], row["value"], row["mark"]) for row in rows] == [
        (1, 0.2, ""),
        (2, 0.1, "best"),
        (3, None, "newest"),
    ]
    assert rows[0]["state"].startswith("damaged: 10 bytes instead of")
    assert [row["state"] for row in rows[1:]] == ["whole", "whole"]
    with pytest.raises(UserError, match="no weights can be read from it: 10 bytes instead of"):
        describe(tmp_path / "step-00000001.pt")


def test_sizes_and_amounts():
    sizes = {0: "0 bytes", 999: "999 bytes", 1200: "1.2 kB", 5e6: "5 MB", 12.3e9: "12.3 GB"}
    assert {size: size_text(size) for size in sizes} == sizes
    mixed = {"a": torch.ones(1000, 2), "b": [torch.ones(3).int()], "c": 4}
    assert amount(mixed) == "2,003 numbers in 2 tensors (float32, int32)"
    assert amount({}) == "0 numbers in 0 tensors"
