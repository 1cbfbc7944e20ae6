from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from lightkit.monitor.gpus import (
    GpuFacts,
    GpuProcess,
    allowed,
    computing_on,
    describe,
    is_order_known,
    throttle_names,
    visible_gpus,
)

PLAIN = [GpuFacts(at, f"GPU-{letter * 4}-0", "NVIDIA H200") for at, letter in enumerate("abcd")]
SPLIT = [
    PLAIN[0],
    GpuFacts(1, "GPU-ssss-1", "NVIDIA A100", split=True),
    GpuFacts(1, "MIG-1111", "NVIDIA A100", mig="1g.5gb"),
    GpuFacts(1, "MIG-2222", "NVIDIA A100", mig="2g.10gb"),
]


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def uuids(gpus: list[GpuFacts], wanted: str | None) -> list[str]:
    with environment({} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}):
        return [gpu.uuid for gpu in visible_gpus(gpus)]


def test_throttle_reasons_have_names() -> None:
    assert throttle_names(0) == ()
    assert throttle_names(0x44) == ("sw_power_cap", "hw_thermal_slowdown")
    assert throttle_names(0x1001) == ("gpu_idle", "unknown_0x1000")
    assert throttle_names(None) is None


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, "abcd"),
        ("0", "a"),
        ("2,0", "ca"),
        (" 1 , 3 ", "bd"),
        ("", ""),
        ("NoDevFiles", ""),
        ("-1", ""),
        ("1,-1,2", "b"),
        ("1,9,2", "b"),
        ("1,1", ""),
        ("2x,0", "ca"),
        ("GPU-dddd-0,GPU-a", "da"),
        ("GPU-", ""),
        ("GPU-zzzz,GPU-a", ""),
        ("GPU-b,2", "bc"),
    ],
)
def test_visible_gpus_are_those_cuda_would_count(wanted: str | None, seen: str) -> None:
    assert uuids(PLAIN, wanted) == [f"GPU-{letter * 4}-0" for letter in seen]


@pytest.mark.parametrize(
    ("wanted", "seen", "choice"),
    [
        (None, "1111", "aaaa 1111 2222"),
        ("1", "1111", "1111 2222"),
        ("1,0", "1111", "1111 2222 aaaa"),
        ("0", "aaaa", "aaaa"),
        ("0,MIG-2222", "2222", "aaaa 2222"),
        ("MIG-2222,1", "2222", "2222 1111"),
        ("MIG-2222,MIG-2222", "", ""),
        ("GPU-ssss-1", "1111", "1111 2222"),
        ("MIG-9", "", ""),
    ],
)
def test_a_split_gpu_stands_for_an_instance_and_a_process_may_choose(
    wanted: str | None, seen: str, choice: str
) -> None:
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    with environment(environ):
        for gpus, expected in ((visible_gpus(SPLIT), seen), (allowed(SPLIT), choice)):
            assert [gpu.uuid.split("-")[1] for gpu in gpus] == expected.split()


def test_a_split_gpu_without_instances_and_one_that_does_not_answer_are_not_seen() -> None:
    assert uuids([PLAIN[0], GpuFacts(1, "GPU-s", "x", split=True), GpuFacts(2, "", "does not answer")], None) == [
        "GPU-aaaa-0"
    ]


def test_different_models_are_counted_by_speed_unless_told_otherwise() -> None:
    mixed = [*PLAIN, GpuFacts(4, "GPU-t", "Tesla T4")]
    with environment({}):
        assert is_order_known(PLAIN)
        assert is_order_known([*PLAIN, GpuFacts(4, "", "does not answer")])
        assert not is_order_known(mixed)
    with environment({"CUDA_VISIBLE_DEVICES": "1,2"}):
        assert not is_order_known(mixed)
    with environment({"CUDA_VISIBLE_DEVICES": "GPU-t"}):
        assert is_order_known(mixed)
    with environment({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}):
        assert is_order_known(mixed)


def test_what_cuda_says_goes_before_the_environment() -> None:
    with environment({"CUDA_VISIBLE_DEVICES": "2,1"}):
        assert computing_on(PLAIN, [0, 1]) == [PLAIN[2], PLAIN[1]]
        assert computing_on(PLAIN, [0, 1], uuids={0: "dddd-0", 1: "GPU-aaaa-0"}) == [PLAIN[3], PLAIN[0]]
        assert computing_on(PLAIN, [0, 1], uuids={1: "of no GPU"}) == [PLAIN[2], PLAIN[1]]
        assert computing_on(PLAIN, [0, 5]) == [PLAIN[2]]
        assert computing_on(PLAIN, [0, 1], uuids={0: "aaaa-0", 1: "aaaa-0"}) == [PLAIN[0]]


def test_of_a_split_gpu_cuda_may_only_know_the_whole() -> None:
    with environment({"CUDA_VISIBLE_DEVICES": "MIG-2222"}):
        assert computing_on(SPLIT, [0], uuids={0: "ssss-1"}) == [SPLIT[3]]
    with environment({}):
        assert computing_on(SPLIT, [0], uuids={0: "2222"}) == [SPLIT[3]]


def test_a_process_with_user_and_command() -> None:
    own = describe(os.getpid(), 512.0)
    assert (own.pid, own.memory_mib, own.run) == (os.getpid(), 512.0, None)
    assert (own.user, own.command) == (psutil.Process().username(), " ".join(psutil.Process().cmdline()))
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert describe(ended.pid, None) == GpuProcess(ended.pid)


def test_the_run_it_works_on(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w"):
        rank = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
        assert rank.stdout is not None
        try:
            rank.stdout.readline()
            assert describe(os.getpid()).run is None  # any program may have such a file
            (tmp_path / "config.yaml").touch()
            assert describe(os.getpid()).run == tmp_path
            assert describe(rank.pid).run == tmp_path, "a rank belongs to the run of its parent"
        finally:
            rank.communicate(b"\n")


def test_what_belongs_to_others_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: object) -> None:
        raise psutil.AccessDenied(1)

    for name in ("cmdline", "username", "open_files"):
        monkeypatch.setattr(psutil.Process, name, denied)
    assert describe(os.getpid()) == GpuProcess(os.getpid())
