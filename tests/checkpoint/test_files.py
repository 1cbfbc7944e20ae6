"""Files get their name when all of them is on the disk, and hold plain types only."""

from __future__ import annotations

import collections
import errno
import io
import os
import resource
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from lightkit.checkpoint.files import to_plain
from lightkit.common.errors import UserError
from tests.checkpoint.crashes import content, loaded_step
from tests.checkpoint.test_store import filled, names


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    made, calls = filled(tmp_path, steps=[10], keep_last=1), []

    def recorded(label, function):
        def call(*args, **kwargs):
            what = "folder" if label == "sync" and stat.S_ISDIR(os.fstat(args[0]).st_mode) else "file"
            calls.append(f"{label} {what}" if label == "sync" else f"{label} {Path(args[-1]).suffix}")
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "fsync", recorded("sync", os.fsync))
    monkeypatch.setattr(Path, "replace", recorded("rename to", Path.replace))
    monkeypatch.setattr(Path, "unlink", recorded("delete", Path.unlink))
    made.save(content(20), step=20, value=9.0)
    written, named = ["sync file", "sync file"], ["rename to .pt", "sync folder", "rename to .json", "sync folder"]
    assert calls == [*written, *named, "delete .pt"]


def test_a_file_size_limit_stops_cleanly(tmp_path):
    made = filled(tmp_path, keep_last=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match="File too large"):
            made.save(content(40, size=100_000), step=40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert loaded_step(made.load_newest()) == 30
    assert names(tmp_path) == ["manifest.json", "step-00000030.pt"]


def test_file_systems_without_folder_sync_are_fine(tmp_path, monkeypatch):
    real = os.fsync

    def picky(handle):
        if Path(f"/proc/self/fd/{handle}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(handle)

    monkeypatch.setattr(os, "fsync", picky)
    assert loaded_step(filled(tmp_path).load_newest()) == 30


class Mine(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (OmegaConf.create([1, 2]), r"checkpoint\.a\.b\[1\] is a omegaconf\.listconfig\.ListConfig"),
        (np.float64(1.0), r"checkpoint\.a\.b\[1\] is a numpy\.float64"),
        (type("Loud", (str,), {})("x"), "Loud"),
        (lambda: None, "function"),
        (collections.Counter("aab"), "Counter"),
        (b"", "is empty bytes, which torch.load refuses"),
        ({1.5: 0}, r"checkpoint\.a\.b\[1\] has the key 1\.5 of type float"),
        (torch.ones(2).as_subclass(Mine), r"checkpoint\.a\.b\[1\] is a Mine; convert it to a plain tensor"),
    ],
)
def test_other_types_are_refused_by_their_path(value, message):
    with pytest.raises(TypeError, match=message):
        to_plain({"a": {"b": [0, value]}})


def test_tensors_are_bare_and_written_once_without_the_rest_of_their_storage():
    weight = torch.nn.Parameter(torch.zeros(10_000))
    odd = {"sparse": torch.eye(3).to_sparse(), "empty": torch.empty(0), "view": torch.zeros(100_000)[:10]}
    plain = to_plain({"a": weight, "b": weight, **odd, "c": collections.OrderedDict(d=1)})
    assert type(plain["a"]) is torch.Tensor
    assert not plain["a"].requires_grad
    assert type(plain["c"]) is dict
    assert plain["sparse"].is_sparse
    file = io.BytesIO()
    torch.save(plain, file)
    assert file.tell() < 60_000
