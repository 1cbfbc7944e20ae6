"""Files of other formats are told by what they are, wherever they are given."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lightkit.checkpoint.bounds import foreign_format
from lightkit.checkpoint.formats import open_file
from lightkit.checkpoint.reading import read
from lightkit.common.errors import UserError
from tests.conftest import Outcome

DEEP = nn.Sequential(*[nn.Linear(8, 8) for _ in range(30)])


def packed(path: Path) -> None:
    with torch.package.PackageExporter(str(path)) as exporter:
        exporter.save_pickle("model", "model.pkl", {"a": 1})


def exported(path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(2, 1), (torch.zeros(1, 2),)), path.with_suffix(".pt2"))
    path.with_suffix(".pt2").rename(path)


def arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, weight=np.zeros(3))


MADE: dict[str, tuple[Callable[[Path], object], str]] = {
    "scripted": (lambda path: torch.jit.script(nn.Linear(1, 1)).save(str(path)), "a TorchScript program"),
    "traced": (lambda path: torch.jit.trace(DEEP, torch.zeros(1, 8)).save(str(path)), "a TorchScript program"),
    "exported": (exported, "a program of torch.export"),
    "packed": (packed, "an archive of torch.package"),
    "arrays": (arrays, "arrays of NumPy"),
    "array": (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00 rest"), "arrays of NumPy"),
    "keras": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n rest"), "an HDF5 file"),
    "gguf": (lambda path: path.write_bytes(b"GGUF rest of it"), "a GGUF file"),
    "zipped": (lambda path: path.write_bytes(gzip.compress(b"text")), "compressed"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("format", MADE)
@pytest.mark.parametrize("opened", [open_file, read], ids=["weights", "checkpoint"])
def test_a_file_of_another_format_is_named_with_the_way_out(
    tmp_path: Path, format: str, opened: Callable[[Path], object]
) -> None:
    make, what = MADE[format]
    make(tmp_path / "model.pt")
    with pytest.raises(UserError, match=what) as caught:
        opened(tmp_path / "model.pt")
    told = foreign_format(tmp_path / "model.pt")
    assert told is not None
    assert (told.fix in str(caught.value), caught.value.exit_code) == (True, 5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("key", ["finetune.weights.path", "resume.file"])
def test_a_traced_program_is_not_said_to_take_too_much_memory(
    cli: Callable[..., Outcome], project: Path, key: str
) -> None:
    file = project / "traced.pt"
    torch.jit.trace(DEEP, torch.zeros(1, 8)).save(str(file))
    done = cli("train", "data=wine", "model=mlp", f"{key}={file}", "logger.console.style=quiet")
    assert "it is a TorchScript program" in done.err
    assert "by torch.jit.load" in done.err
    assert "memory" not in done.err
    assert done.code == 5


def test_files_of_our_own_are_none(tmp_path: Path) -> None:
    torch.save({"constants": torch.zeros(2)}, tmp_path / "a.pt")
    torch.save(torch.zeros(2), tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    assert [foreign_format(tmp_path / name) for name in ("a.pt", "b.pt", "lost.pt")] == [None] * 3
