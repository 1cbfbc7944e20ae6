"""Pretrained weights of other packages: no file of a known name is opened that is not what its name says."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.downloads import checked_downloads

models = pytest.importorskip("torchvision.models")
SHAPES = ("data=shapes", "data.dataset.train=8", "data.dataset.val=99", "data.dataset.test=99", "trainer.steps=1")
TRAIN = ("train", *SHAPES, "model=torchvision", "model.name=resnet18", "model.weights=DEFAULT")


class Evil:
    """Leaves a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("canary"),)


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """A folder that a server on this machine offers; `address` in it is where."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        (folder / "address").write_text(f"http://127.0.0.1:{server.server_port}")
        yield folder
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torch's cache of pretrained files."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home/hub/checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def publish(served: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Have torchvision's weights of resnet18 be some content, under the name that its checksum asks for."""

    def put(content: Any, *, digits: str = "") -> str:
        torch.save(content, served / "file")
        digits = digits or hashlib.sha256((served / "file").read_bytes()).hexdigest()[:8]
        name = f"resnet18-{digits}.pth"
        (served / "file").rename(served / name)
        entry = models.ResNet18_Weights.DEFAULT.value
        monkeypatch.setattr(entry, "url", f"{(served / 'address').read_text()}/{name}")
        return name

    return put


def test_a_cached_file_that_is_not_what_its_name_says_is_not_opened(cli: Callable[..., Any], cache: Path) -> None:
    name = models.ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    torch.save(Evil(), cache / name)
    refusal = cli(*TRAIN)
    assert refusal.code == 5, refusal.err
    assert f"{name}: the pretrained file is not the one that was published; it was not opened" in refusal.err
    assert f"delete {cache / name}" in refusal.err
    assert not Path("canary").exists()


def test_a_file_of_the_right_checksum_runs_no_code(cli: Callable[..., Any], cache: Path, publish: Any) -> None:
    publish(Evil())
    refusal = cli(*TRAIN)
    assert refusal.code == 5, refusal.err
    assert "the pretrained file holds more than tensors, which would run code; it was not opened" in refusal.err
    assert not Path("canary").exists()


def test_a_download_that_is_not_what_its_name_says_is_not_kept(
    cli: Callable[..., Any], cache: Path, publish: Any
) -> None:
    publish(models.resnet18().state_dict(), digits="01234567")
    refusal = cli(*TRAIN)
    assert refusal.code == 2, refusal.err
    assert "the weights of resnet18 cannot be fetched: invalid hash value" in refusal.err
    assert not any(cache.iterdir())


@pytest.mark.thorough
def test_weights_that_are_what_they_should_be_are_fetched_and_found_again(
    cli: Callable[..., Any], cache: Path, publish: Any, served: Path
) -> None:
    name = publish(models.resnet18().state_dict())
    assert cli(*TRAIN).code == 0
    assert (cache / name).is_file()
    (served / name).unlink()
    assert cli(*TRAIN).code == 0


def test_a_class_of_torchvision_by_its_own_name_is_watched_too(cli: Callable[..., Any], cache: Path) -> None:
    name = models.ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    torch.save(Evil(), cache / name)
    direct = ("model=custom", "model._target_=torchvision.models.resnet18", "+model.weights=DEFAULT")
    refusal = cli("train", *SHAPES, *direct)
    assert refusal.code == 5, refusal.err
    assert "not the one that was published" in refusal.err
    assert not Path("canary").exists()


def test_own_code_opens_what_it_likes(project: Path) -> None:
    torch.save(Evil(), "own.pth")
    with checked_downloads():
        torch.load("own.pth", weights_only=False)
        assert Path("canary").exists()
        patched = torch.load
        with checked_downloads():
            assert torch.load is patched
    assert torch.load is not patched
