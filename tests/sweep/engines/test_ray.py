"""Jobs as tasks of Ray: two nodes on the loopback interface, one of which is lost."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from tests.sweep.engines.made import Sweep
from tests.waiting import PATIENCE_SECONDS

# Ray reads these when it is imported: what it keeps at home and where it listens.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ["RAY_AUTH_TOKEN"] = "0123456789abcdef" * 4
pytest.importorskip("ray")
from lightkit.sweep.engines.ray import RayEngine, _connected, _shorten_messages


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, which Ray's sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def listening() -> set[str]:
    """Return the addresses that processes listen at, beside those of the loopback interface."""
    found = subprocess.run(["ss", "-ltnH"], check=False, capture_output=True, text=True).stdout
    addresses = {line.split()[3] for line in found.splitlines() if len(line.split()) > 3}
    return {address for address in addresses if not address.startswith(("127.", "[::1]", "[::ffff:127."))}


@pytest.mark.thorough(first=0)
def test_jobs_run_end_stop_and_leave_nothing_listening_outside(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listening()
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    jobs = {"a": (0.1, 0), "b": (0.1, 3), "long": (PATIENCE_SECONDS, 0)}
    sweep = Sweep(tmp_path, jobs, lambda command: RayEngine(tmp_path, command, slots=2))
    try:
        assert listening() <= before
        (place,) = short.iterdir()
        assert stat.S_IMODE(place.stat().st_mode) == 0o700, "Ray's own folder in it is open to everybody"
        assert list(place.glob("*/session_latest")), "what Ray writes is in it"
        assert 1 <= sweep.engine.room() <= 2
        for name in "ab":
            sweep.start(name)
            sweep.until(lambda name=name: name in sweep.ended)
        sweep.start("long")
        sweep.until_ready("long")
        sweep.engine.stop("long")
        sweep.until(lambda: "long" in sweep.ended)
        assert sweep.ended == {"a": 0, "b": 3, "long": 143}
        assert (tmp_path / "a" / "gpus").read_text() == ""
        assert sweep.parts("long") == ["begun", "saved at 15"]
    finally:
        sweep.engine.close()


@pytest.mark.thorough
def test_a_job_whose_node_is_lost_saves_and_goes_on_elsewhere(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_TMPDIR", str(short))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # Ray starts no node with more than are named
    (short / "ray").mkdir()
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": str(short), "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")  # at the head, which stays
        first = cluster.add_node(num_cpus=1, num_gpus=2, object_store_memory=80_000_000)
        cluster.wait_for_nodes()
        build = partial(RayEngine, tmp_path, address=cluster.address, gpus=1)
        sweep = Sweep(tmp_path, {"job": (PATIENCE_SECONDS, 0)}, build)
        sweep.engine._needs["GPU"] = 3
        with pytest.raises(UserError, match="large enough") as caught:
            sweep.engine._need_room()
        assert "3 GPU" in str(caught.value)
        sweep.engine._needs["GPU"] = 1
        sweep.start("job")
        sweep.until_ready("job")
        cluster.add_node(num_cpus=1, num_gpus=2, object_store_memory=80_000_000)
        cluster.remove_node(first, allow_graceful=False)
        sweep.until(lambda: len(sweep.parts("job")) == 3)
        (tmp_path / "job" / "enough").touch()
        sweep.until(lambda: "job" in sweep.ended)
        assert sweep.parts("job") == ["begun", "saved at 15", "begun"]
        assert ((tmp_path / "job" / "gpus").read_text(), sweep.ended) == ("0", {"job": 0})
        sweep.engine.close()
    finally:
        ray.shutdown()  # the cluster refuses to end while this process is connected to it
        cluster.shutdown()


def test_a_cluster_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not answer") as caught:
        RayEngine(tmp_path, lambda start: [], address="127.0.0.1:1")
    assert caught.value.key == "sweep.ray.address"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


class Stub:
    """Stands in for the package: what it would connect with is noted."""

    class exceptions:
        class AuthenticationError(Exception):
            pass

    error: Exception | None = None

    def __init__(self) -> None:
        self.modes = list[str | None]()

    def init(self, _address: str | None, **_options: Any) -> None:
        self.modes.append(os.environ.get("RAY_AUTH_MODE"))
        if self.error is not None:
            raise self.error


def test_what_the_user_says_of_tokens_counts_on_a_cluster_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "x")
    monkeypatch.setenv("RAY_AUTH_MODE", "x")
    monkeypatch.setitem(sys.modules, "ray", stub := Stub())
    for address, typed in (("auto", "disabled"), ("auto", None), (None, "disabled")):
        monkeypatch.setenv("RAY_AUTH_MODE", typed) if typed else monkeypatch.delenv("RAY_AUTH_MODE")
        _connected(address)
    assert stub.modes == ["disabled", "token", "token"]
    stub.error = Stub.exceptions.AuthenticationError("Token authentication is enabled but no token was found")
    with pytest.raises(UserError, match="cannot be joined without its token") as caught:
        _connected("auto")
    assert "export RAY_AUTH_MODE=disabled" in str(caught.value)
    assert "received: 'auto, with RAY_AUTH_MODE=token'" in str(caught.value)


def test_what_ray_reports_of_a_lost_node_is_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    from types import SimpleNamespace

    from ray._private import worker

    assert callable(worker.print_to_stdstream)  # what the thread of this version of Ray calls
    ray = SimpleNamespace(_private=SimpleNamespace(worker=SimpleNamespace(print_to_stdstream=print)))
    _shorten_messages(ray, tmp_path / "ray" / "messages.log")
    text = "Raylet is terminated. Termination is unexpected.\n" + "    [state-dump] 1 total\n" * 20
    ray._private.worker.print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"Ray reports: Raylet is terminated; the whole report is in {tmp_path}/ray/messages.log"
    assert capfd.readouterr().out == ""
    assert (tmp_path / "ray" / "messages.log").read_text().count("state-dump") == 20
    _shorten_messages(SimpleNamespace(), tmp_path / "other")  # another version
