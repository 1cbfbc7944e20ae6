"""Decoded samples that are kept: the same bits as without, and never those of other data."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset

from lightkit.common.errors import UserError
from lightkit.data import sample_cache
from lightkit.data.images import ImageFolder
from lightkit.data.sample_cache import keep_samples
from lightkit.data.sources import as_source
from lightkit.data.transforms import RandomShift
from tests.conftest import Outcome
from tests.data.pictures import ROWS, Images, Silent, in_memory, joined, make, same

Pair = namedtuple("Pair", "x y")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_cache, "FRESH_SECONDS", 0.0)
    return tmp_path / "cache/lightkit/samples"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for number in range(24):
        file = tmp_path / f"photos/{'ab'[number % 2]}/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(file)
    return tmp_path / "photos"


class Counting(Silent):
    """Says how often each row was read, in this process and others, and may be given other samples."""

    def __init__(self, log: Path, sample: Callable[[int], Any] | None = None) -> None:
        super().__init__()
        self.log, self.sample, self.sources = log, sample or super().__getitem__, ["version 1"]

    def __getitem__(self, row: int) -> Any:
        with self.log.open("a") as file:
            file.write(f"{row}\n")
        return self.sample(row)

    def reads(self) -> int:
        found = len(self.log.read_text().splitlines()) if self.log.exists() else 0
        self.log.unlink(missing_ok=True)
        return found


def kept(dataset: Any, where: str, **settings: Any) -> Any:
    return make(keep_samples(as_source(dataset), where, "asked"), **settings)


@pytest.mark.parametrize("where", ["ram", "disk"])
@pytest.mark.parametrize("workers", [0, 2])
def test_later_epochs_read_nothing_and_have_the_same_bits(tmp_path: Path, where: str, workers: int) -> None:
    source = Counting(tmp_path / "log")
    plain = make(source, augment=[RandomShift(1)])
    cached = kept(source, where, augment=[RandomShift(1)], num_workers=workers)
    source.reads()
    assert same(joined(cached.train, 0), joined(plain.train, 0))
    assert source.reads() == 2 * ROWS
    assert same(joined(cached.train, 1, 16), joined(plain.train, 1, 16))
    assert source.reads() == ROWS - 16, "those without a cache"
    joined(cached.train, 2)
    assert source.reads() == 0
    assert "41 samples take about 0.0 MiB" in cached.notes[0]
    cached.close()
    again = kept(source, where)
    source.reads()
    joined(again.train, 3)
    assert source.reads() == (ROWS if where == "ram" else 0)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "unlike shapes": lambda row: (torch.rand(3, 2 + row % 5), {"boxes": torch.zeros(row % 3, 4), "labels": [1, row]}),
    "arrays": lambda row: (np.full((2, 3), row, np.float64).T, np.int64(row), np.float32(0.1), row / 7, row % 2 == 0),
    "views of one": lambda row: Pair(torch.arange(8)[:-1], torch.arange(8)[1:]),
    "floats": lambda row: (torch.tensor([0.1, -0.0, float(row)]), torch.tensor(float("inf"), dtype=torch.bfloat16)),
    "levels": lambda row: (torch.arange(256, dtype=torch.float32).reshape(16, 16).T / 255, 1),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_come_back_as_they_were(tmp_path: Path, kind: str) -> None:
    def sample(row: int) -> Any:
        torch.manual_seed(row)
        return SAMPLES[kind](row)

    source = keep_samples(as_source(Counting(tmp_path / "log", sample)), "ram", "")
    copied = pickle.loads(pickle.dumps(source.slots))
    source.base.reads()
    first = [source[row] for row in range(ROWS)]
    source.base.reads()
    source.slots = copied  # as a worker process has it that is not forked
    again = [source[row] for row in range(ROWS)]
    assert source.base.reads() == 0
    assert repr(again) == repr(first)
    for one, other in zip(torch.utils._pytree.tree_leaves(again), torch.utils._pytree.tree_leaves(first)):
        assert type(one) is type(other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


def test_a_sample_of_another_kind_is_read_each_time(tmp_path: Path) -> None:
    source = Counting(
        tmp_path / "log", lambda row: (torch.zeros(2), None if row == 7 else torch.zeros(9999 * (row == 8)))
    )
    cached = keep_samples(as_source(source), "ram", "")
    for row in (7, 8, 9):
        cached[row], source.reads()
    assert [(cached[row][0].shape, source.reads())[1] for row in (7, 8, 9)] == [1, 1, 0]


class Endless(IterableDataset[int]):
    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[int]:
        return iter([1] * 9)


@pytest.mark.parametrize(
    ("dataset", "where", "message"),
    [
        (Images, "ram", "random numbers have a part in them.*data.augment"),
        (in_memory, "ram", "whole batches"),
        (Endless, "ram", "stream"),
        (Silent, "disk", "attribute `sources`.*data.cache=ram"),
        (type("Texts", (Silent,), {"__getitem__": lambda self, row: (["a"], 1)}), "ram", "numpy.str_"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(dataset: Any, where: str, message: str) -> None:
    with pytest.raises(UserError, match=f"(?s)data.cache: samples cannot be kept.*{message}"):
        keep_samples(as_source(dataset()), where, "")


def changed(photos: Path, home: Path, how: str) -> dict[str, Any]:
    """Change something about photos that are kept; returns settings of the next start."""
    file, facts = photos / "a/2.png", (photos / "a/2.png").stat()
    if how == "a file of the same size and time":
        content = file.read_bytes()
        file.write_bytes(content)
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    if how == "a file is gone":
        file.unlink()
    return {"size": 6} if how == "an option" else {"size": 8}


@pytest.mark.parametrize(
    "how", ["nothing", "a file of the same size and time", "a file is gone", "an option", "decoding"]
)
def test_a_changed_source_is_never_served(photos: Path, home: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(size: int) -> int:
        """Read all; returns how many were not kept yet."""
        source = keep_samples(as_source(ImageFolder(str(photos), size)), "disk", {"size": size})
        fresh = sum(not source.slots.read(row) for row in range(len(source)))
        plain = ImageFolder(str(photos), size)
        assert all(torch.equal(source[row][0], plain[row][0]) for row in range(len(source)))
        return fresh

    assert start(8) == 24
    settings = changed(photos, home, how)
    if how == "decoding":
        read = ImageFolder.__getitem__
        monkeypatch.setattr(ImageFolder, "__getitem__", lambda self, row: (read(self, row)[0] * 2, 1))
    assert start(**settings) == {"nothing": 0, "a file is gone": 23}.get(how, 24)
    assert len([*home.iterdir()]) == (2 if how == "an option" else 1), "the former copy goes"


@pytest.mark.thorough(first=2)
@pytest.mark.parametrize("damage", ["bits", "cut", "foreign", "empty"])
def test_a_damaged_file_is_made_again_with_a_line(photos: Path, home: Path, damage: str, caplog: Any) -> None:
    def start() -> Any:
        return keep_samples(as_source(ImageFolder(str(photos), 8)), "disk", "")

    whole = start()
    first = [whole[row][0] for row in range(24)]
    (file,) = home.iterdir()
    content = bytearray(file.read_bytes())
    content[600] ^= 1
    file.write_bytes({"bits": content, "cut": content[:5000], "foreign": os.urandom(9000), "empty": b""}[damage])
    for _ in range(2):
        source = start()
        assert all(torch.equal(source[row][0], first[row]) for row in range(24))
        told = [record.message for record in caplog.records if "is damaged, and is made again" in record.message]
        assert len(told) == (damage != "empty")


def test_a_full_disk_goes_on_with_a_line(photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    source = keep_samples(as_source(ImageFolder(str(photos), 8)), "disk", "")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert len([source[row] for row in range(24)]) == 24
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["No space left on device"]


@pytest.mark.parametrize("container", [None, (900, 1000)])
def test_more_than_the_memory_that_is_free_is_refused(photos: Path, monkeypatch: Any, container: Any) -> None:
    free = 100 if container is None else 1 << 40
    monkeypatch.setattr(sample_cache, "machine_memory", lambda: (1 << 40, free))
    monkeypatch.setattr(sample_cache, "container_memory", lambda: container)
    source = as_source(ImageFolder(str(photos), 8))
    with pytest.raises(UserError, match=r"(?s)data.cache: 24 samples take about .*at most 0.0 MiB.*data.cache=disk"):
        keep_samples(source, "ram", "")
    assert keep_samples(source, "disk", "") is not source


def test_without_a_place_for_copies_the_run_goes_on(photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos / "a/0.png"))
    source = as_source(ImageFolder(str(photos), 8))
    assert keep_samples(source, "disk", "") is source
    assert "data.cache=disk: no samples are kept" in caplog.text


def test_what_nobody_reads_goes_after_a_month(photos: Path, home: Path) -> None:
    keep_samples(as_source(ImageFolder(str(photos), 8)), "disk", "")
    (old,) = home.iterdir()
    os.utime(old, (1e9, 1e9))
    keep_samples(as_source(ImageFolder(str(photos), 6)), "disk", "other")
    assert old not in [*home.iterdir()]


def _fill(photos: Path, rows: int) -> None:
    sample_cache.FRESH_SECONDS = 0.0
    source = keep_samples(as_source(ImageFolder(str(photos), 8)), "disk", "")
    for row in range(rows):
        source[row]
    os.kill(os.getpid(), signal.SIGKILL)


def test_processes_fill_one_file_and_a_kill_leaves_what_was_done(photos: Path, home: Path) -> None:
    both = [get_context("fork").Process(target=_fill, args=(photos, rows)) for rows in (7, 9)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for process in both:
            process.start()
    for process in both:
        process.join()
    assert {process.exitcode for process in both} == {-signal.SIGKILL}
    plain = ImageFolder(str(photos), 8)
    source = keep_samples(as_source(plain), "disk", "")
    assert [bool(source.slots.read(row)) for row in range(24)] == [row < 9 for row in range(24)]
    assert all(torch.equal(source[row][0], plain[row][0]) for row in range(24))


def test_a_run_and_its_resume_have_the_bits_of_one_without(cli: Callable[..., Outcome], photos: Path) -> None:
    words = ["train", "data=image_folder", f"data.dataset.root={photos}", "data.dataset.size=8", "data.batch_size=4"]
    words += [
        "data.split.val=0.2",
        "data.split.test=0",
        "model=mlp",
        "model.hidden=[4]",
        "logger=quiet",
        "trainer.test=none",
    ]
    cli(*words, "trainer.epochs=2", "data.num_workers=0", "name=plain")
    told = cli(*words, "trainer.epochs=2", "data.cache=disk", "trainer.stop_at=6", "data.num_workers=1", "name=kept")
    assert told.code == 0, told.err
    assert cli("resume", "kept", "trainer.stop_at=null", "data.cache=ram", "data.num_workers=1").code == 0
    compared = cli("ckpt", "diff", "plain", "kept")
    assert compared.code == 0, compared.out + compared.err
    refused = cli("train", "data=wine", "data.cache=ram")
    assert refused.code == 2
    assert "data.cache" in refused.err
