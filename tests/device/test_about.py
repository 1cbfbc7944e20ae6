from __future__ import annotations

import sys

import pytest

from lightkit.device import about


@pytest.mark.parametrize(("number", "text"), [(92600, "9.26.0"), (8902, "8.9.2"), (91002, "9.10.2"), (None, None)])
def test_versions_of_cudnn(number: int | None, text: str | None) -> None:
    class Cudnn:
        version = staticmethod(lambda: number)
        is_available = staticmethod(lambda: True)

    assert about._cudnn(Cudnn) == text


def test_version_of_nccl() -> None:
    class Nccl:
        version = staticmethod(lambda: (2, 28, 3))

    assert about._nccl(Nccl) == "2.28.3"
    assert about._nccl(object()) is None, "a build without it"


def test_cuda_says_which_gpus_its_devices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Facts:
        def __init__(self, device: torch.device) -> None:
            if device.index == 0:
                self.uuid = "aaaa"

    devices = [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", Facts)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert about.cuda_uuids(devices) == {0: "aaaa"}
    monkeypatch.setattr(torch.version, "cuda", None)
    assert about.cuda_uuids(devices) == {}


def test_a_pytorch_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        assert about.torch_facts()["error"].endswith("import of torch halted; None in sys.modules")
