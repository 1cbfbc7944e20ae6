"""Files that are built to take all memory are refused before they do."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint import bounds, manifest
from lightkit.checkpoint.bounds import ExcessError, check_content
from lightkit.checkpoint.weights import read_weights
from tests.conftest import Outcome

HUGE = 1 << 40


def packed(path: Path) -> None:
    """Zeros, compressed."""
    plain = path.with_suffix(".plain")
    torch.save({"weight": torch.zeros(1 << 24)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for part in source.infolist():
            target.writestr(part.filename, source.read(part))
    plain.unlink()


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


ONE_WAY_IN = [(make, "inspect") for make in (sparse, shared, nested, many, many_in_the_old_layout)]
EVERY_WAY_IN = [(make, way) for make in (packed, repeated) for way in ("inspect", "convert", "diff", "weights")]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*sparse tensor:UserWarning")
@pytest.mark.parametrize(("make", "way"), [*ONE_WAY_IN, *EVERY_WAY_IN])
def test_a_file_that_would_take_all_memory_is_refused(
    cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], way: str
) -> None:
    monkeypatch.setattr(bounds, "_MOST_OBJECTS", 10_000)
    make(Path("evil.pt"))
    args = {
        "inspect": ("ckpt", "inspect", "evil.pt"),
        "convert": ("ckpt", "convert", "evil.pt", "out.pt"),
        "diff": ("ckpt", "diff", "evil.pt", "evil.pt"),
        "weights": ("train", "data=wine", "finetune=full", "finetune.weights.path=evil.pt"),
    }[way]
    refusal = cli(*args)
    assert refusal.code == 5, refusal.err
    assert "evil.pt: no weights can be read from it: it would take too much memory: " in refusal.err
    assert not Path("out.pt").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("make", [packed, repeated])
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


def test_a_container_in_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ExcessError, match="nested more than"):
        check_content(value, 1)
