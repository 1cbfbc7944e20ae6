"""Files that are built to take all memory, and files of other formats, are refused before they are read."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightkit.checkpoint import bounds, manifest
from lightkit.checkpoint.bounds import ExcessError, check_content, foreign_format
from lightkit.checkpoint.formats import open_file
from lightkit.checkpoint.reading import read
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from tests.conftest import Outcome

HUGE = 1 << 40


def packed(path: Path) -> None:
    """Zeros, compressed."""
    plain = io.BytesIO()
    torch.save({"weight": torch.zeros(1 << 24)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for part in source.infolist():
            target.writestr(part.filename, source.read(part))


def repeated(path: Path) -> None:
    """One number that says to be many."""
    torch.save({"weight": torch.zeros(1).expand(HUGE)}, path)


def sparse(path: Path) -> None:
    """One number of very many."""
    torch.save({"weight": torch.sparse_coo_tensor([[0]], [1.0], (HUGE,), check_invariants=True)}, path)


def shared(path: Path) -> None:
    """A few lists that are thousands of millions of entries."""
    value: Any = [0.5] * 10
    for _ in range(10):
        value = [value] * 10
    torch.save({"weight": torch.zeros(1), "besides": value}, path)


def nested(path: Path) -> None:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(200):
        value = [value]
    torch.save({"weight": torch.zeros(1), "besides": value}, path)


def many(path: Path) -> None:
    """A pickle of nothing but empty sets."""
    plain = io.BytesIO()
    torch.save({}, plain)
    content = b"\x80\x02" + b"\x8f0" * (bounds._MOST_OBJECTS + 1) + b"}."
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as target:
        for part in source.infolist():
            target.writestr(part.filename, content if part.filename.endswith("data.pkl") else source.read(part))


def many_in_the_old_layout(path: Path) -> None:
    """The same without an archive."""
    head = b"".join(pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {}))
    path.write_bytes(head + b"\x80\x02" + b"\x8f0" * (bounds._MOST_OBJECTS + 1) + b"}.")


WAYS = {
    "convert": ("ckpt", "convert", "evil.pt", "out.pt"),
    "inspect": ("ckpt", "inspect", "evil.pt"),
    "diff": ("ckpt", "diff", "evil.pt", "evil.pt"),
    "weights": ("train", "data=wine", "finetune=full", "finetune.weights.path=evil.pt"),
}


@pytest.mark.filterwarnings("ignore:.*sparse tensor:UserWarning")
@pytest.mark.parametrize("make", [packed, repeated, sparse, shared, nested, many, many_in_the_old_layout])
def test_a_file_that_would_take_all_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(bounds, "_MOST_OBJECTS", 10_000)
    make(tmp_path / "evil.pt")
    with pytest.raises(UserError, match=r"evil.pt: no weights can be read from it: it would take too much memory: "):
        read_weights(tmp_path / "evil.pt")


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_commands_refuse_it(cli: Callable[..., Outcome], way: str) -> None:
    repeated(Path("evil.pt"))
    refusal = cli(*WAYS[way])
    assert refusal.code == 5, refusal.err
    assert "evil.pt: no weights can be read from it: it would take too much memory: " in refusal.err
    assert not Path("out.pt").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("make", "listed"), [(repeated, True), (packed, False)])
def test_resume_refuses_it_too(
    cli: Callable[..., Outcome], caplog: pytest.LogCaptureFixture, make: Callable[[Path], None], listed: bool
) -> None:
    assert cli("train", "data=wine", "trainer.steps=1", "hydra.run.dir=run").code == 0
    folder = Path("run/checkpoints")
    entry = manifest.read(folder)[-1]
    if make is packed:
        make(folder / entry.file)
    else:
        content = torch.load(folder / entry.file, weights_only=True)
        content["model"] = {name: value.flatten()[:1].expand(HUGE) for name, value in content["model"].items()}
        torch.save(content, folder / entry.file)
    (folder / "manifest.json").unlink()
    if listed:
        data = (folder / entry.file).read_bytes()
        as_it_is = replace(entry, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        manifest.write(folder, [as_it_is], mode="max")
    refusal = cli("resume", "run", "trainer.steps=2")
    assert refusal.code == 5, refusal.err
    assert "would take too much memory" in refusal.err + caplog.text


def test_what_training_scripts_write_passes(tmp_path: Path) -> None:
    weight = torch.randn(100, 100)
    mask = torch.ones(1, 1, 1, 512).expand(1, 1, 512, 512)
    torch.save({"a": weight, "tied": weight, "row": weight[0], "turned": weight.t(), "mask": mask}, tmp_path / "a.pt")
    assert set(read_weights(tmp_path / "a.pt").state) == {"a", "tied", "row", "turned", "mask"}
    torch.save({"a": weight}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(read_weights(tmp_path / "old.pt").state["a"], weight)
    assert [foreign_format(tmp_path / name) for name in ("a.pt", "old.pt", "lost.pt")] == [None] * 3


def test_a_container_in_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ExcessError, match="nested more than"):
        check_content(value, 1)


DEEP = nn.Sequential(*[nn.Linear(8, 8) for _ in range(30)])


def a_package(path: Path) -> None:
    with torch.package.PackageExporter(str(path)) as exporter:
        exporter.save_pickle("model", "model.pkl", {"a": 1})


def a_program(path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(2, 1), (torch.zeros(1, 2),)), path.with_suffix(".pt2"))
    path.with_suffix(".pt2").rename(path)


def arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, weight=np.zeros(3))


MADE: dict[str, tuple[Callable[[Path], object], str]] = {
    "traced": (lambda path: torch.jit.trace(DEEP, torch.zeros(1, 8)).save(str(path)), "a TorchScript program"),
    "exported": (a_program, "a program of torch.export"),
    "packed": (a_package, "an archive of torch.package"),
    "arrays": (arrays, "arrays of NumPy"),
    "array": (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00 rest"), "arrays of NumPy"),
    "keras": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n rest"), "an HDF5 file"),
    "gguf": (lambda path: path.write_bytes(b"GGUF rest of it"), "a GGUF file"),
    "zipped": (lambda path: path.write_bytes(gzip.compress(b"text")), "compressed"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("format", MADE)
def test_a_file_of_another_format_is_named_with_the_way_out(tmp_path: Path, format: str) -> None:
    make, what = MADE[format]
    make(tmp_path / "model.pt")
    for opened in (open_file, read):
        with pytest.raises(UserError, match=what) as caught:
            opened(tmp_path / "model.pt")
        foreign = foreign_format(tmp_path / "model.pt")
        assert foreign is not None
        assert (foreign.fix in str(caught.value), caught.value.exit_code) == (True, 5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("key", ["finetune.weights.path", "resume.file"])
def test_a_traced_program_is_not_said_to_take_too_much_memory(
    cli: Callable[..., Outcome], project: Path, key: str
) -> None:
    file = project / "traced.pt"
    torch.jit.trace(DEEP, torch.zeros(1, 8)).save(str(file))
    done = cli("train", "data=wine", "model=mlp", f"{key}={file}", "logger.console.style=quiet")
    assert done.code == 5
    for words, there in (("it is a TorchScript program", True), ("by torch.jit.load", True), ("memory", False)):
        assert (words in done.err) == there
