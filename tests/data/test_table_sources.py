"""Tables from files of every kind that the real packages write, and files that are no tables."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from lightkit.data import table
from tests.conftest import Outcome
from tests.refused import refused

SETTINGS: dict[str, Any] = {
    "target": "kind",
    "features": ["x", "n", "colour", "born", "ok"],
    "categorical": ["colour"],
    "dates": ["born"],
    "missing": {"x": "mean", "n": "mean"},
}


def frame(rows: int = 40) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    made = pd.DataFrame({"x": draw.normal(size=rows), "n": pd.array(draw.integers(0, 1000, rows), "Int64")})
    made["colour"] = pd.Categorical(draw.choice(["red", "blue"], rows))
    made["born"] = pd.date_range("2020-02-28", periods=rows, freq="31h")
    made["ok"], made["kind"] = draw.random(rows) > 0.5, draw.choice(["a", "b"], rows)
    made.loc[3, "x"], made.loc[4, "x"], made.loc[5, "n"] = np.nan, np.inf, None
    return made


def as_csv(made: pd.DataFrame, path: Path, sep: str = ",") -> None:
    made.assign(ok=made.ok.astype(int)).to_csv(path, index=False, sep=sep)


def as_stream(made: pd.DataFrame, path: Path) -> None:
    whole = pa.Table.from_pandas(made)
    with pa.ipc.new_stream(path, whole.schema) as file:
        file.write_table(whole, max_chunksize=7)


WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "t.csv": as_csv,
    "t.tsv": lambda made, path: as_csv(made, path, "\t"),
    "t.dat": as_csv,
    "t.parquet": lambda made, path: made.to_parquet(path, row_group_size=7),
    "p.parquet": lambda made, path: pl.from_pandas(made).write_parquet(path),
    "t.feather": lambda made, path: feather.write_feather(made, path, chunksize=7),
    "u.feather": lambda made, path: pl.from_pandas(made).write_ipc(path, compression="lz4"),
    "t.arrow": as_stream,
    "t.jsonl": lambda made, path: made.to_json(path, orient="records", lines=True, date_format="iso"),
    "t.ndjson": lambda made, path: pl.from_pandas(made).write_ndjson(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    made = frame()
    WRITERS[name](made, tmp_path / name)
    data, known = table(str(tmp_path / name), **SETTINGS), table(frame=made, **SETTINGS)
    assert data.info.fingerprint == known.info.fingerprint
    assert data.feature_names == known.feature_names
    assert int(data.x.isnan().sum()) == 3, "NaN, an infinity and nothing"


def test_frames_folders_and_patterns(tmp_path: Path) -> None:
    made, mark = frame(), table(frame=frame(), **SETTINGS).info.fingerprint
    for given in (
        pl.from_pandas(made),
        pl.from_pandas(made).lazy(),
        pa.Table.from_pandas(made),
        made.astype({"colour": object}).set_index("n", drop=False),
    ):
        assert table(frame=given, **SETTINGS).info.fingerprint == mark
    made[:15].to_parquet(tmp_path / "a.parquet")
    as_csv(made[15:30][[*made.columns[::-1]]], tmp_path / "b.csv")
    WRITERS["t.jsonl"](made[30:], tmp_path / "c.jsonl")
    for name in (".hidden", "_SUCCESS"):
        (tmp_path / name).write_text("?")
    for given in (tmp_path, tmp_path / "*"):
        if given.name == "*":
            (tmp_path / "_SUCCESS").unlink()
            (tmp_path / ".hidden").unlink()
        assert table(str(given), **SETTINGS).info.fingerprint == mark
    assert len(table(str(tmp_path / "[ab].*"), **SETTINGS)) == 30
    as_csv(made[30:].assign(colour="red", born=["2020-01-01"] * 9 + ["1.2.2020"]), tmp_path / "c.jsonl.csv")
    refused(lambda: table(str(tmp_path), **SETTINGS), "c.jsonl.csv, line 11: column 'born' holds no date … '1.2.2020'")


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty.parquet": (Path.touch, "path: the file cannot be read"),
    "empty.jsonl": (Path.touch, "path: the file … "),
    "none.parquet": (lambda path: parquet.write_table(pa.table({"x": [1.0], "kind": ["a"]})[:0], path), "has no rows"),
    "cut.feather": (lambda path: path.write_bytes(b"ARROW1\0\0half"), "path: the file cannot be read"),
    "twice.arrow": (
        lambda path: feather.write_feather(pa.table([[1.0], [2.0], ["a"]], names=["x", "x", "kind"]), path),
        "the file cannot be read … duplicate field names",
    ),
    "nested.parquet": (
        lambda path: parquet.write_table(
            pa.table({"x": [1.0, 2.0], "tags": [[1, 2], [3]], "at": [{"a": 1}, {"a": 2}], "kind": ["a", "b"]}), path
        ),
        "row 0: columns 'tags', 'at' hold lists or mappings … features=[x]",
    ),
    "broken.jsonl": (
        lambda path: path.write_text('{"x": 1, "kind": "a"}\n' * 6999 + '{"x": 1, "kind"\n' + "[1]\n" + '{"x": 2}\n'),
        "broken.jsonl, line 7000: no object of JSON … broken, too: line 7001",
    ),
    "mixed.jsonl": (
        lambda path: path.write_text("\n".join(json.dumps({"x": i, "kind": "ab"[i % 2]}) for i in range(30))
                                     + '\n\n{"x": "old", "kind": "a"}\n'),
        "mixed.jsonl, line 32: column 'x' holds text in some rows and numbers in most … 'old'",
    ),
    "t.xlsx": (Path.touch, "no table can be read from such a file … .jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_no_tables(tmp_path: Path, name: str) -> None:
    write, text = BAD[name]
    write(tmp_path / name)
    refused(lambda: table(str(tmp_path / name), "kind"), text)


@pytest.mark.parametrize("name", ["t.parquet", "u.feather", "t.arrow", "pandas", "polars"])
def test_dates_and_categories_are_known_by_their_types(tmp_path: Path, name: str) -> None:
    made, how = frame(), {**SETTINGS, "categorical": [], "dates": []}
    if name in WRITERS:
        WRITERS[name](made, tmp_path / name)
    given = made if name == "pandas" else pl.from_pandas(made)
    data = table(str(tmp_path / name), **how) if name in WRITERS else table(frame=given, date_format="%d.%m.%Y", **how)
    assert data.info.fingerprint == table(frame=made, **SETTINGS).info.fingerprint
    assert "column 'born': data.dataset.dates, by its type in the table" in data.notes
    assert table(frame=made, **{**how, "embedded": ["colour"]}).info.cardinalities[2] == 3, "what is named wins"
    as_csv(made, tmp_path / "z.csv")
    if name == "t.parquet":
        refused(lambda: table(str(tmp_path), **how), "column 'born' holds dates … dates=[born]")


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "t.csv.gz": gzip.compress,
    "t.tsv.bz2": bz2.compress,
    "t.CSV.zst": lambda raw: pa.compress(raw, "zstd", asbytes=True),
    "t.jsonl.gz": gzip.compress,
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_files_are_unpacked_as_they_are_read(tmp_path: Path, name: str) -> None:
    plain, made = tmp_path / "plain" / name.rpartition(".")[0].lower(), frame()
    plain.parent.mkdir()
    WRITERS[plain.name](made, plain)
    (tmp_path / name).write_bytes(PACKED[name](plain.read_bytes()))
    assert table(str(tmp_path / name), **SETTINGS).info.fingerprint == table(frame=made, **SETTINGS).info.fingerprint
    WRITERS[plain.name](made.assign(x=["old", *range(39)]), plain)
    (tmp_path / name).write_bytes(PACKED[name](plain.read_bytes()))
    first = 1 if "json" in name else 2
    refused(lambda: table(str(tmp_path / name), **SETTINGS), f"{name}, line {first}: column 'x' holds text … 'old'")
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-20])
    refused(lambda: table(str(tmp_path / name), **SETTINGS), "path: the file cannot be read")


def test_partitions_are_columns(tmp_path: Path) -> None:
    made = frame().assign(year=[2024, 2025] * 20)
    made.to_parquet(tmp_path / "parts", partition_cols=["year"])
    data = table(
        str(tmp_path / "parts"),
        **{**SETTINGS, "features": ["year", "x"], "categorical": [], "dates": [], "missing": "mean"},
    )
    assert (data.x[:, 0].tolist(), data.feature_names) == ([2024] * 20 + [2025] * 20, ("year", "x"))
    made.to_csv(tmp_path / "parts/rest.csv", index=False)
    refused(lambda: table(str(tmp_path / "parts"), "kind"), "rest.csv lies beside folders such as year=2024")
    (tmp_path / "parts/rest.csv").rename(tmp_path / "parts/year=2025/rest.csv")
    refused(lambda: table(str(tmp_path / "parts"), "kind"), "Parquet magic bytes … folders of Parquet files alone")


def test_folders_that_are_no_tables(tmp_path: Path) -> None:
    refused(lambda: table(str(tmp_path), "kind"), "there are no tables")
    pd.DataFrame({"x": [1, 2], "kind": ["a", "b"]}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"x": [1, 2], "kin": ["a", "b"]}).to_csv(tmp_path / "b.csv", index=False)
    (tmp_path / "notes.md").write_text("mine")
    error = refused(
        lambda: table(str(tmp_path), "kind"), "b.csv has other columns than a.csv: lacks kind; has kin more"
    )
    assert "notes.md: no table can be read from such a file" in str(error)
    assert table(str(tmp_path / "a*.csv"), "kind").x.tolist() == [[1], [2]]
    refused(lambda: table(target="kind"), "path: name one table")
    refused(lambda: table(frame=[1], target="kind"), "frame: this is no table")


def test_unknown_columns_are_told_a_few_at_a_time(tmp_path: Path) -> None:
    made = pd.DataFrame({"x": [1.0, 2.0], "kind": ["a", "b"]})
    error = refused(lambda: table(frame=made, target="kind", features=[f"c{i}" for i in range(100)]), "'c4'")
    assert "(and 95 others are none)" in str(error)
    assert "'c5'" not in str(error)


def test_a_copy_serves_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightkit.data import table_cache, table_columns

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(table_cache, "_LEAST", 1)
    monkeypatch.setattr(table_cache, "FRESH_SECONDS", 0.0)
    parsed = list[int]()
    parse = table_columns.number_column
    monkeypatch.setattr(table_columns, "number_column", lambda *args: parsed.append(1) or parse(*args))
    path = tmp_path / "t.csv"
    made = frame()
    as_csv(made, path)

    def read(*, fresh: bool, **more: Any) -> str:
        parsed.clear()
        mark = table(str(path), **{**SETTINGS, **more}).info.fingerprint
        assert bool(parsed) == fresh
        return mark

    first = read(fresh=True)
    assert read(fresh=False) == first
    assert read(fresh=True, decimal=",", missing="most_frequent", features=["n"], categorical=[], dates=[])
    assert read(fresh=True, cache=False) == first
    (copy,) = (one for one in (tmp_path / "cache/lightkit/tables").iterdir() if one.stat().st_size > 2500)
    content = bytearray(copy.read_bytes())
    for damaged in (content[:-40], content[: len(content) // 2], b"", content.replace(b"blue", b"glue")):
        copy.write_bytes(damaged)
        assert read(fresh=True) == first
        assert read(fresh=False) == first
    facts = path.stat()
    as_csv(made.assign(kind=made.kind[::-1].tolist()), path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert read(fresh=True) != first, "of the same size and time, but changed"
    monkeypatch.setattr(table_cache, "FRESH_SECONDS", 2.0)
    read(fresh=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path / "no folder"))
    monkeypatch.setattr(table_cache, "FRESH_SECONDS", 0.0)
    read(fresh=True)


def test_the_command_reads_a_frame_of_a_function(cli: Callable[..., Outcome], project: Path) -> None:
    (project / "mine.py").write_text(
        "import pandas as pd\n\ndef load(rows: int = 40):\n"
        "    return pd.DataFrame({'x': range(rows), 'y': [i / 7 for i in range(rows)]})\n"
    )
    node = "data.dataset.frame={_target_: mine.load, rows: 50}"
    done = cli("train", "data=table", node, "data.dataset.target=y", "data.dataset.task=regression", "trainer.epochs=1")
    assert done.code == 0, done.err
    assert "val/mse" in done.out
