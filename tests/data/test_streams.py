"""Shards read by row: what they hold, what is wrong with them, and the index that knows where each row lies."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset
from PIL import Image

from lightkit.common.errors import UserError
from lightkit.data import Data, build_data, streams
from lightkit.data.orders import Windows
from lightkit.data.streams import Stream, find_shards
from tests.conftest import Cli
from tests.resume.harness import BASE, Case, configured

ROWS = [7, 5, 9]
ALL = {"by": "ordered", "val": 0.0, "test": 0.0}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "lightkit" / "streams"


def picture(number: int) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (6, 5), (number * 10, 0, 255 - number)).save(made, "PNG")
    return made.getvalue()


def write_tar(path: Path, samples: Sequence[Mapping[str, bytes]], first: int = 0) -> None:
    with tarfile.open(path, "w") as tar:
        for number, sample in enumerate(samples, first):
            for field, content in sample.items():
                member = tarfile.TarInfo(f"./some.folder/{number:04d}.{field}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_tars(folder: Path, counts: Sequence[int] = ROWS) -> Path:
    folder.mkdir(exist_ok=True)
    first = 0
    for shard, count in enumerate(counts):
        numbers = range(first, first + count)
        samples = [
            {"png": picture(n), "cls": b"%d" % (n % 3), "json": json.dumps({"name": "abc"[n % 3]}).encode()}
            for n in numbers
        ]
        write_tar(folder / f"part-{shard}.tar", samples, first)
        first += count
    return folder


def write_lines(path: Path, count: int, label: Callable[[int], Any] = lambda n: n % 2) -> Path:
    lines = [json.dumps({"x": [n, 1.5], "label": label(n)}) for n in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def data(source: Stream, **options: Any) -> Data:
    split = {"by": "file", "val": 0.0, "test": 0.0} if source.splits else ALL
    return build_data(
        dataset=source,
        split=split,
        batch_size=4,
        sampler=lambda **facts: Windows(facts["num_samples"], facts["shards"], 8),
        **options,
    )


def told(error: pytest.ExceptionInfo[UserError]) -> str:
    return str(error.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_tar_files_as_webdataset_reads_them(tmp_path: Path) -> None:
    folder = write_tars(tmp_path / "data")
    source = Stream(str(folder), "cls", "png")
    assert (len(source), source.info.task, source.info.num_classes, source.info.input_shape) == (
        21,
        "multiclass",
        3,
        (3, 5, 6),
    )
    assert source.shards.tolist() == [0, 7, 12]
    peer = [*webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False).decode("torchrgb")]
    for (x, y), other in zip(source, peer, strict=True):  # type: ignore[call-overload]
        assert torch.equal(x, other["png"])
        assert y == other["cls"]
    named = Stream(str(folder / "part-*.tar"), "json.name", ["png", "cls"])
    assert (named.info.class_names, named[4][1], named[4][0]["cls"]) == (("a", "b", "c"), 1, 1)
    whole = Stream(str(folder / "part-0.tar"))
    assert (whole.info.task, sorted(whole[0]), whole[3]["json"]) == ("custom", ["cls", "json", "png"], {"name": "a"})


@pytest.mark.parametrize("name", ["n" * 40, "n" * 140, "ü" * 20], ids=["short", "long", "beyond ASCII"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_files_of_every_form(tmp_path: Path, form: int, name: str) -> None:
    if form == tarfile.USTAR_FORMAT and len(name) > 100:
        name = "folder/" * 15 + name[:40]
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as tar:
        for number in range(3):
            for field, content in (("cls", b"%d" % number), ("txt", b"x" * number * 300)):
                member = tarfile.TarInfo(f"{name}{number}.{field}")
                member.size, member.mtime = len(content), 1e9 + 0.5  # type: ignore[assignment]
                tar.addfile(member, io.BytesIO(content))
    source = Stream(str(tmp_path / "a.tar"), "cls", classes=3)
    assert [source[row] for row in range(3)] == [("x" * 300 * row, row) for row in range(3)]


def test_every_kind_of_file_and_of_content(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", 6)
    assert [Stream(str(tmp_path / "a.jsonl"), "label")[n][0].tolist() for n in (0, 5)] == [[0, 1.5], [5, 1.5]]
    (tmp_path / "b.txt").write_bytes("one\r\n\nthree ü".encode())
    lines = Stream(str(tmp_path / "b.txt"))
    assert [lines[n] for n in (2, 0, 1)] == ["three ü", "one", ""]
    table = pa.table(
        {
            "x": [[float(n)] * 3 for n in range(10)],
            "y": [n / 2 for n in range(10)],
            "image": [picture(n) for n in range(10)],
        }
    )
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=4)
    rows = Stream(str(tmp_path / "c.parquet"), "y", "x")
    assert (rows.info.task, rows[9][0].tolist(), rows[9][1], rows[2][1]) == ("regression", [9.0] * 3, 4.5, 1.0)
    image = Stream(str(tmp_path / "c.parquet"), "y", "image", size=4, decode={"image": "png"})
    assert image[7][0].shape == (3, 4, 4)
    arrays = io.BytesIO()
    np.save(arrays, np.eye(2, dtype="float32"))
    write_tar(tmp_path / "d.tar", [{"mask.npy": arrays.getvalue(), "raw": b"\1\2", "txt": b"hi"}] * 2)
    sample = Stream(str(tmp_path / "d.tar"), decode={"raw": lambda content: sum(content)})[1]
    assert (sample["mask.npy"].tolist(), sample["raw"], sample["txt"]) == ([[1, 0], [0, 1]], 3, "hi")
    dense = Stream(str(tmp_path / "d.tar"), "mask.npy", "raw")
    assert (dense.targets.tolist(), dense[0][1].shape) == ([], (2, 2)), (
        "a target that is no number is read with its row"
    )
    truths = Stream(str(write_lines(tmp_path / "e.jsonl", 4, lambda n: n > 1)), "label")
    assert (truths.targets.tolist(), truths.info.task) == ([0, 0, 1, 1], "multiclass")


def test_other_file_systems_are_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tars(tmp_path / "data")
    files = fsspec.filesystem("memory")
    files.put(str(folder), "/remote", recursive=True)
    here, there = Stream(f"file://{folder}", "cls", "png"), Stream("memory://remote/*.tar", "cls", "png")
    assert all(torch.equal(here[row][0], there[row][0]) for row in range(21))
    assert here.info.fingerprint == there.info.fingerprint
    with pytest.raises(UserError, match="cannot be listed: ValueError: Protocol not known"):
        Stream("nowhere://bucket/*.tar")
    files.rm("/remote", recursive=True)


def test_splits_have_shards_of_their_own(tmp_path: Path) -> None:
    folder = write_tars(tmp_path / "data")
    paths = {"train": f"{folder}/part-[01].tar", "val": f"{folder}/part-2.tar"}
    made = data(Stream(paths, "cls", "png"))
    assert {name: rows.tolist() for name, rows in made.rows.items()} == {"train": [*range(12)], "val": [*range(12, 21)]}
    with pytest.raises(UserError, match="no such shard") as error:
        Stream({**paths, "test": f"{folder}/test-*.tar"})
    assert "test-*.tar" in told(error)


@pytest.mark.parametrize(("others", "ranks"), [(0, 1), (2, 1), (0, 3)])
def test_the_same_bits_with_other_workers_and_processes(tmp_path: Path, others: int, ranks: int) -> None:
    from lightkit.data.transforms import RandomShift

    source = Stream(str(write_tars(tmp_path / "data")), "cls", "png")
    options: dict[str, Any] = {"augment": [RandomShift(1)], "seed": 3}
    whole = [*data(source, **options).train.epoch(1)]
    made = [data(source, num_workers=others, replicas=ranks, replica=rank, **options) for rank in range(ranks)]
    parts = [[*own.train.epoch(1, 8)] for own in made]
    for number, (x, y) in enumerate(whole[2:]):
        of_ranks = [part[number] for part in parts] if len(x) >= ranks else [parts[0][number]]
        assert torch.equal(torch.cat([part[0] for part in of_ranks]), x)
        assert torch.equal(torch.cat([part[1] for part in of_ranks]), y)
    for own in made:
        own.close()


def test_a_window_opens_few_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Stream(str(write_tars(tmp_path / "data", [4] * 20)), "cls", "png")
    opened: list[str] = []
    real = streams.url_to_fs
    monkeypatch.setattr(streams, "url_to_fs", lambda url: opened.append(url) or real(url))
    streams._opened.cache_clear()
    batches = data(source).train.epoch(0, 40)  # windows of 8 rows, batches of 4, at the beginning of a window
    next(batches), next(batches)
    assert len(opened) == 2, "what was done before is not opened again"
    assert len([*batches]) == 8
    assert len(opened) == len({*opened}) == 10


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:9000]), "of part-1.tar cannot be read: ReadError"),
        (lambda path: path.write_bytes(path.read_bytes()[:6144] + b"#" * 4096), "no member begins at byte 6,144"),
        (lambda path: path.write_bytes(path.read_bytes()[:6144]), "the end of the file is missing"),
        (lambda path: path.write_bytes(b""), "row 1 of part-1.tar cannot be read: ReadError: empty file"),
        (lambda path: write_tar(path, []), "row 1 of part-1.tar cannot be read: ValueError: it is empty"),
        (
            lambda path: write_tar(path, [{"cls": b"1", "png": b""}, {"png": b"", "txt": b""}]),
            "row 2 of part-1.tar .* no field 'cls' among png, txt",
        ),
        (
            lambda path: write_tar(path, [{"cls": b"1", "png": b""}, {"cls": b"1"}]),
            "row 2 of part-1.tar .* no field 'png' among cls",
        ),
        (
            lambda path: write_tar(path, [{"cls": b"1", "png": b""}, {"cls": b"7", "png": b""}]),
            "row 2 of part-1.tar .* data.dataset.classes: 7",
        ),
    ],
)
def test_damaged_shards_are_named_before_training(tmp_path: Path, damage: Any, message: str) -> None:
    folder = write_tars(tmp_path / "data")
    damage(folder / "part-1.tar")
    with pytest.raises(UserError, match=message):
        Stream(str(folder), "cls", "png", classes=3)


def test_lines_are_named_all_in_one_report(tmp_path: Path) -> None:
    for name, line in (("a", 7000), ("b", 3)):
        path = write_lines(tmp_path / f"{name}.jsonl", 7100)
        content = path.read_text().splitlines()
        content[line - 1] = '{"x": [1'
        path.write_text("\n".join(content))
    with pytest.raises(UserError, match="row 7,000 of a.jsonl") as error:
        Stream(str(tmp_path), "label")
    assert "row 3 of b.jsonl" in told(error)
    with pytest.raises(UserError, match="its target is missing, or none of .*: None"):
        Stream(str(write_lines(tmp_path / "c.jsonl", 9, lambda n: None if n == 8 else 1)), "label")
    with pytest.raises(UserError, match="no such shard"):
        find_shards(str(tmp_path / "none.tar"))


@pytest.mark.parametrize("packed", ["b.tar.gz", "b.tgz", "b.jsonl.gz"])
def test_packed_shards_are_refused_by_name_beside_others_too(tmp_path: Path, packed: str) -> None:
    write_lines(tmp_path / "a.jsonl", 3)
    (tmp_path / packed).write_bytes(b"")
    for path in (tmp_path, tmp_path / packed):
        with pytest.raises(UserError, match=f"{packed} is packed: nothing can be read from its middle") as error:
            find_shards(str(path))
        assert "no .gz" in told(error)


def test_numbers_together_are_one_input_and_names_go_into_entries(tmp_path: Path) -> None:
    rows = [{"a": n, "b": n / 2, "n": {"p": n, "q": -n / 2}, "m.k": 2.0 * n, "y": n % 2} for n in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4)
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))  # no newline at its end
    for name in ("a.parquet", "a.jsonl"):
        source = Stream(str(tmp_path / name), "y", ["a", "n.q", "m.k"])
        assert (source[8][0].tolist(), source[8][1], source.info.input_shape) == ([8.0, -4.0, 16.0], 0, (3,)), name
        left = Stream(str(tmp_path / name), "m.k")
        assert sorted(left[0][0]) == ["a", "b", "n", "y"], "the target is no input, whatever dots are in its name"
        assert Stream(str(tmp_path / name), "n.q", "b").targets.tolist() == [-n / 2 for n in range(9)]
        for target, fields, told in (
            ("n.z", "a", "'n' has no entry 'z'"),
            ("y", "n.z", "'n' has no entry 'z'"),
            ("y", ["a", "z"], "row 1 of a.* there is no field 'z' among a, b, n, m.k, y"),
        ):
            with pytest.raises(UserError, match=told):
                Stream(str(tmp_path / name), target, fields)
    (tmp_path / "b.jsonl").write_text('{"y": 1}')
    with pytest.raises(UserError, match="there is no field 'beside the target' among y"):
        Stream(str(tmp_path / "b.jsonl"), "y")
    (tmp_path / "c.jsonl").write_text('{"a": 1, "y": 1}\n{"a": null, "y": 1}')
    with pytest.raises(UserError, match="row 2 of c.jsonl cannot be read: TypeError"):
        Stream(str(tmp_path / "c.jsonl"), "y")[1]


@pytest.mark.parametrize(
    ("label", "message"),
    [(99999, "row 7 of a.jsonl is of class 99999, but 3 classes have a row"), (-1, "the label of row 7 of a.jsonl is")],
)
def test_a_class_out_of_range_is_named_by_shard_and_row(tmp_path: Path, label: int, message: str) -> None:
    write_lines(tmp_path / "a.jsonl", 9, lambda n: label if n == 6 else n % 2)
    with pytest.raises(UserError, match=message):
        Stream(str(tmp_path / "a.jsonl"), "label")
    if label > 0:
        assert len(Stream(str(tmp_path / "a.jsonl"), "label", classes=100_000)) == 9


def test_other_content_in_the_same_places_is_noticed(tmp_path: Path) -> None:
    def marks(digit: int) -> list[str]:
        (tmp_path / "a.jsonl").write_text(f'{{"x": [1.5, {digit}], "y": 1}}\n{{"x": [1, 2], "y": 0}}\n')
        pq.write_table(pa.table({"x": [1, digit], "y": [0, 1]}), tmp_path / "a.parquet")
        return [Stream(str(tmp_path / f"a.{end}"), "y").info.fingerprint for end in ("jsonl", "parquet")]

    first, same, other = marks(3), marks(3), marks(4)
    assert first == same
    assert [one == two for one, two in zip(first, other)] == [False, False]


def test_a_sample_without_a_field_of_the_first_is_named_before_training(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", 8000).read_text().splitlines()
    lines[6999] = '{"label": 1}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match="row 7,000 of a.jsonl cannot be read: .* no field 'x' among label"):
        Stream(str(tmp_path / "a.jsonl"), "label")


def test_a_row_that_breaks_later_is_named(tmp_path: Path) -> None:
    source = Stream(str(write_tars(tmp_path / "data")), "cls", "png")
    write_tar(tmp_path / "bad.tar", [{"png": picture(0), "cls": b"0"}, {"png": b"none", "cls": b"1"}])
    with pytest.raises(UserError, match="row 2 of bad.tar cannot be read: the image cannot be read"):
        Stream(str(tmp_path / "bad.tar"), "cls", "png")[1]
    (tmp_path / "data" / "part-2.tar").write_bytes(b"")
    streams._opened.cache_clear()
    with pytest.raises(UserError, match="row 1 of part-2.tar cannot be read: .*changed since its index was made"):
        source[12]


def test_a_row_that_is_unlike_others_is_named_with_its_file(tmp_path: Path) -> None:
    for name, rows in (("a", 400), ("b", 7100)):
        path = write_lines(tmp_path / f"{name}.jsonl", rows)
    content = path.read_text().splitlines()
    content[6999] = json.dumps({"x": [1.5], "label": 1})
    path.write_text("\n".join(content))
    made = data(Stream(str(tmp_path), "label", "x"), num_workers=1)
    with pytest.raises(UserError, match=r"sample 7,000 of b\.jsonl is not like sample 0"):
        [*made.evaluation("train").epoch(0, 7300)]  # type: ignore[union-attr]
    made.close()


def test_the_index_is_found_again_and_follows_the_shards(
    tmp_path: Path, state: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tars(tmp_path / "data")
    before = Stream(str(folder), "cls", "png").info.fingerprint
    (file,) = state.glob("*.npz")
    assert sorted(path.name for path in folder.iterdir()) == [f"part-{n}.tar" for n in range(3)], (
        "nothing beside the data"
    )
    for damage in (b"", file.read_bytes()[:-40], file.read_bytes()[:200] + b"##" + file.read_bytes()[202:]):
        file.write_bytes(damage)
        caplog.clear()
        assert Stream(str(folder), "cls", "png").info.fingerprint == before
        assert f"the index of shards {file} is made again" in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(streams, "_scanned", None)
        assert Stream(str(folder), "cls", "png").info.fingerprint == before
    write_tars(tmp_path / "data", [7, 6])
    (folder / "part-2.tar").unlink()
    caplog.clear()
    assert len(Stream(str(folder), "cls", "png")) == 13
    assert "new, changed or gone are ['part-0.tar', 'part-1.tar', 'part-2.tar']" in caplog.text


def _length(path: str, gate: Any, found: Any) -> None:
    gate.wait()
    real = streams._scanned
    streams._scanned = lambda *given: found.put("scanned") or real(*given)  # type: ignore[func-returns-value]
    found.put(len(Stream(path, "cls", "png")))


def test_one_process_makes_the_index_while_others_wait(tmp_path: Path) -> None:
    path, context = str(write_tars(tmp_path / "data")), get_context("fork")
    gate, found = context.Barrier(3), context.Queue()
    children = [context.Process(target=_length, args=(path, gate, found)) for _ in range(3)]
    for child in children:
        child.start()
    told = sorted(str(found.get(timeout=60)) for _ in range(4))
    for child in children:
        child.join(60)
    assert told == ["21", "21", "21", "scanned"]
    assert found.empty()


RUN = (
    *("data=stream", "data.dataset.target=cls", "data.dataset.fields=png", "data.sampler.window=6", "model=mlp"),
    *("trainer.epochs=2", "data.batch_size=4", "checkpoint.every_steps=2", *BASE[:5]),
    *("metrics=none", "metrics.monitor=val/loss"),
)


def test_a_killed_run_goes_on_with_other_workers(tmp_path: Path) -> None:
    folder = write_tars(tmp_path / "pictures", [20, 20, 20])
    case = Case(configured(f"data.dataset.path={folder}", "data.num_workers=0", base=RUN), tmp_path)
    place = case.kill(case.moments("step")[7], "killed")
    case.resume(place, "data.num_workers=1")
    assert case.differences(place) == []


def test_a_run_does_not_go_on_with_other_shards(project: Path, cli: Cli, caplog: Any) -> None:
    folder = write_tars(project / "pictures", [20, 20, 20])
    assert cli("train", *RUN, f"data.dataset.path={folder}", "hydra.run.dir=run", "trainer.stop_at=1").code == 0
    write_tars(project / "pictures", [20, 19])
    refused = cli("resume", "run", "trainer.stop_at=null")
    assert refused.code == 2
    assert "the data differ from those of this run" in refused.err
    assert "new, changed or gone are ['part-0.tar', 'part-1.tar']" in caplog.text


@pytest.mark.thorough(first=0)
@pytest.mark.slow
def test_processes_share_a_run_and_one_goes_on_alone(process: Cli, project: Path) -> None:
    folder = write_tars(project / "pictures", [20, 20, 20])
    common = (
        "train",
        *RUN,
        f"data.dataset.path={folder}",
        "device.parallel=ddp",
        "device.nproc=2",
        "data.num_workers=0",
    )
    done = process(*common, f"hydra.run.dir={project}/run", "trainer.epochs=1")
    assert done.code == 0, done.err
    again = process("resume", "run", "trainer.epochs=2", "device.nproc=1")
    assert again.code == 0, again.err
