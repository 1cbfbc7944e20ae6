"""Archives of runs: what is packed comes back, and what could harm does not."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.runs.archive import archive, unpack

RUN = "runs/2026-01-31/12-00-00-a"
A = f"{RUN}/a"


def make_run(root: Path, place: str = RUN) -> Path:
    folder = root / "outputs" / place
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("data: {}\nmodel: {}\n")
    (folder / "checkpoints" / "step-1.pt").write_bytes(bytes(range(256)) * 9)
    (folder / ".mark.abc").write_text("signature")
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def packed(path: Path, files: dict[str, bytes], folders: list[str] | None = None, **changes: Any) -> Path:
    """Write an archive as somebody might who means harm; but for that it is whole."""
    if not changes.get("bare"):
        files = {**{f"{folder}/config.yaml": b"{}" for folder in folders or [RUN]}, **files}
    listed = {name: [len(content), hashlib.sha256(content).hexdigest()] for name, content in files.items()}
    head = json.dumps({"lightkit": 1, "folders": folders or [RUN], "files": {**listed, **changes.get("listed", {})}})
    head = changes.get("head", head)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"lightkit-archive.json": head.encode(), **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for key, value in changes.get("entry", {}).items() if name == changes.get("of", A) else ():
                setattr(entry, key, value)
            tar.addfile(entry, io.BytesIO(content))
        for name, content in changes.get("more", {}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_what_is_packed_comes_back(tmp_path: Path, ending: str) -> None:
    folder, other, path = make_run(tmp_path / "one"), tmp_path / "other", tmp_path / f"a.{ending}"
    assert archive([folder], path, tmp_path / "one") == 2
    (found,) = unpack(path, other)
    assert found == other / "outputs" / RUN
    names = sorted(file.relative_to(found).as_posix() for file in found.rglob("*") if not file.is_dir())
    assert names == ["checkpoints/step-1.pt", "config.yaml"], "neither links nor signatures go along"
    for name in names:
        assert (found / name).read_bytes() == (folder / name).read_bytes()
    with pytest.raises(UserError, match="a run is there"):
        unpack(path, other)
    with pytest.raises(UserError, match="the file is there"):
        archive([folder], path, tmp_path / "one")
    assert not (other / "outputs" / ".unpacked").exists()


HARMFUL: dict[str, Callable[[Path], Path]] = {
    "above": lambda path: packed(path, {f"{RUN}/../../../../evil": b"x"}),
    "absolute": lambda path: packed(path, {"/etc/evil": b"x"}),
    "other folder": lambda path: packed(path, {"runs/other/evil": b"x"}),
    "folder above": lambda path: packed(path, {"../a/evil": b"x"}, ["../a"]),
    "folder elsewhere": lambda path: packed(path, {"find/a/evil": b"x"}, ["find/a"]),
    "hidden folder": lambda path: packed(path, {"runs/.bin/evil": b"x"}, ["runs/.bin"]),
    "whole of runs": lambda path: packed(path, {"runs/a/b": b"x"}, ["runs", "runs/a"]),
    "no run": lambda path: packed(path, {f"{RUN}/a": b"x"}, bare=True),
    "drive": lambda path: packed(path, {f"{RUN}/C:evil": b"x"}),
    "backslashes": lambda path: packed(path, {f"{RUN}/..\\..\\evil": b"x"}),
    "looks like a slash": lambda path: packed(path, {f"{RUN}/..\u2044evil": b"x"}),
    "looks like dots": lambda path: packed(path, {f"{RUN}/\u2024\u2024/evil": b"x"}),
    "blank part": lambda path: packed(path, {f"{RUN}//evil": b"x"}),
    "long path": lambda path: packed(path, {f"{RUN}/{'a/' * 3000}a": b"x"}),
    "deepest path": lambda path: packed(path, {"a/" * 10**6: b"x"}),
    "a folder twice": lambda path: packed(path, {}, [RUN, RUN]),
    "a folder in another": lambda path: packed(path, {}, [RUN, f"{RUN}/code"]),
    "all runs": lambda path: packed(path, {}, ["runs"]),
    "a file as a folder": lambda path: packed(path, {A: b"x", f"{A}/b": b"x"}),
    "a file as a folder for some disks": lambda path: packed(path, {A: b"x", f"{RUN}/A/b": b"x"}),
    "twice by accents": lambda path: packed(path, {f"{RUN}/\u00e9": b"x", f"{RUN}/e\u0301": b"y"}),
    "twice by a sign of units": lambda path: packed(path, {f"{RUN}/\u212a": b"x", f"{RUN}/k": b"y"}),
    "twice in the file": lambda path: packed(path, {A: b"x"}, more={A: b"x"}),
    "a second list": lambda path: packed(path, {}, more={"lightkit-archive.json": b"{}"}),
    **{
        name: partial(packed, files={A: b""}, entry={"type": kind, "linkname": f"{RUN}/config.yaml"})
        for name, kind in {
            "link": b"2",
            "hard link": b"1",
            "device": b"3",
            "disk": b"4",
            "folder": b"5",
            "fifo": b"6",
        }.items()
    },
    **{
        f"pax: {name}": partial(packed, files={A: b"x"}, entry={"pax_headers": headers})
        for name, headers in {
            "another name": {"path": "../../evil"},
            "another size": {"size": "0"},
            "size below nothing": {"size": "-512"},
            "holes": {"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"},
            "torn holes": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"},
        }.items()
    },
    "list with holes": lambda path: packed(
        path,
        {},
        of="lightkit-archive.json",
        entry={"pax_headers": {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(10**7)}},
    ),
    "list is a link": lambda path: packed(path, {}, of="lightkit-archive.json", entry={"type": b"2"}),
    "signature in capitals": lambda path: packed(path, {f"{RUN}/members/a/.MARK.ab": b"x"}),
    "folder in place of a lock": lambda path: packed(path, {f"{RUN}/.Lock/a": b"x"}),
    "sign of 8 bits": lambda path: packed(path, {f"{RUN}/\x9b2Jevil": b"x"}),
    "from right to left": lambda path: packed(path, {f"{RUN}/\u202egnp.exe": b"x"}),
    "no sign at all": lambda path: packed(path, {A: b"x"}, listed={f"{RUN}/\ud800": [1, "0"]}),
    "less than nothing": lambda path: packed(path, {A: b"x"}, listed={A: [-1, "0" * 64]}),
    "truth for a size": lambda path: packed(path, {A: b"x"}, listed={A: [True, "0" * 64]}),
    **{
        f"list: {head[:20]}": partial(packed, files={A: b"x"}, head=head)
        for head in (
            "",
            "[]",
            "[" * 10**5,
            '{"lightkit": 2}',
            '{"lightkit": 1, "folders": "runs/a", "files": {}}',
            '{"lightkit": NaN}',
            '{"lightkit": 1, "folders": [["runs/a"]], "files": {}}',
            '{"lightkit": 1, "folders": [], "files": []}',
        )
    },
    "signature": lambda path: packed(path, {f"{RUN}/.mark.ab": b"x"}),
    "lock": lambda path: packed(path, {f"{RUN}/.lock": b"x"}),
    "escape": lambda path: packed(path, {f"{RUN}/\x1b[2Jevil": b"x"}),
    "twice for some disks": lambda path: packed(path, {f"{RUN}/A": b"x", f"{RUN}/a": b"y"}),
    "not listed": lambda path: packed(path, {f"{RUN}/a": b"x"}, more={f"{RUN}/b": b"y"}),
    "listed, not there": lambda path: packed(path, {f"{RUN}/a": b"x"}, listed={f"{RUN}/b": [1, "0"]}),
    "another content": lambda path: packed(path, {f"{RUN}/a": b"x"}, listed={f"{RUN}/a": [1, "0" * 64]}),
    "another size": lambda path: packed(path, {f"{RUN}/a": b"x"}, listed={f"{RUN}/a": [10**12, "0" * 64]}),
    "no facts": lambda path: packed(path, {f"{RUN}/a": b"x"}, listed={f"{RUN}/a": "much"}),
}


@pytest.mark.parametrize("case", HARMFUL)
def test_what_could_harm_is_refused_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    path = HARMFUL[case](tmp_path / "bad.tar.gz")
    with pytest.raises(UserError, match="no archive that can be unpacked|the name of a folder") as caught:
        unpack(path, tmp_path / "project")
    assert "\x1b" not in str(caught.value)
    left = [file for file in (tmp_path / "project").rglob("*") if not file.is_dir()]
    assert left == []
    assert {one.name for one in tmp_path.iterdir()} == {"bad.tar.gz", "project"}


def test_nothing_is_put_into_a_run_that_is_there(tmp_path: Path) -> None:
    folder, inside = make_run(tmp_path), f"{RUN}/code"
    path = packed(tmp_path / "bad.tar.gz", {f"{inside}/torch.py": b"raise SystemExit"}, [inside])
    with pytest.raises(UserError, match="a run is there"):
        unpack(path, tmp_path)
    assert not (folder / "code").exists()


def test_a_file_that_is_no_archive_or_ends_early_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    archive([folder], path := tmp_path / "a.tar.gz", tmp_path)
    for content in (b"", b"no archive", path.read_bytes()[:200], path.read_bytes()[:-30]):
        (tmp_path / "torn.tar.gz").write_bytes(content)
        with pytest.raises(UserError, match="no archive that can be unpacked"):
            unpack(tmp_path / "torn.tar.gz", tmp_path / "project")
