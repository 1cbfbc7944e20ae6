from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from lightkit.detached import run_table
from lightkit.detached.run_table import serving_table
from lightkit.runs.lock import locked
from tests.browser import CHROMIUM, browser
from tests.compare.made import SWEEP, a_run, a_sweep
from tests.waiting import PATIENCE_SECONDS, until

VALUES = {0.1: [0.5, 0.75], 0.01: [0.25, 0.45]}
RUNS = "outputs/runs/2026-01-31"
EVIL = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_table, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(run_table, "_SHARE", 0)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "outputs").mkdir()
    folder = {"host": "127.0.0.1", "wanted": None, "passed": lambda _: None}
    with serving_table(tmp_path / "outputs", tmp_path, **folder) as port:
        yield f"http://127.0.0.1:{port}/"


def get(address: str, path: str = "rows", headers: dict[str, str] | None = None, **words: Any) -> Any:
    """What the server answers, or the number of its refusal."""
    asked = urllib.request.Request(
        f"{address}{path}?{urlencode({'count': 100, **words}, doseq=True)}", headers=headers or {}
    )
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as answer:
            content = answer.read()
            return json.loads(gzip.decompress(content)) if path in ("rows", "names", "curve") else answer.headers
    except urllib.error.HTTPError as error:
        return error.code


def names(answer: dict[str, Any]) -> list[str]:
    return [Path(mark).name for mark in answer["order"]]


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        found.update(
            f"{path} {facts.st_mtime_ns} {facts.st_size}".encode() + (path.read_bytes() if path.is_file() else b"")
        )
    return found.hexdigest()


def test_the_server_filters_and_sorts_as_the_command_does_and_writes_nothing(address: str, tmp_path: Path) -> None:
    a_sweep(tmp_path, VALUES, curve=[0.1, 0.2])
    before = digest(tmp_path)
    best = get(address, sort="best", column=["status", "best", "optim.lr", "model"])
    assert next(iter(best["rows"].values())) == ["finished", 0.75, 0.1, "lightkit.models.MLP"]
    assert names(best) == [f"optim.lr={lr},seed={seed}" for lr, seed in ((0.1, 1), (0.1, 0), (0.01, 1), (0.01, 0))]
    assert names(get(address, sort="-best", first=1, count=2)) == names(best)[1:3][::-1]
    assert names(get(address, where="optim.lr>0.05 and seed=1")) == ["optim.lr=0.1,seed=1"]
    for where, mistake in {"optim.lt>1": "nearest: optim.lr", "lr": "not a condition", "seed>a": "compares"}.items():
        assert mistake in get(address, where=where)["mistake"]
    assert "no run has this key" in get(address, sort="nosuch")["mistake"]
    listed = get(address, "names")
    assert listed.index("name") < listed.index("val/accuracy") < listed.index("optim.lr") < listed.index("model")
    assert get(address, "curve", run=best["order"])["curve"]["seeds"] == [4, 4]
    assert digest(tmp_path) == before


def test_only_what_changed_is_sent(address: str, tmp_path: Path) -> None:
    assert get(address)["order"] == []
    a_sweep(tmp_path, VALUES)
    first = get(address, column="status")
    assert (len(first["rows"]), first["of"]) == (4, 4)
    same = get(address, column="status", since=first["version"])
    assert same.keys() == {"version", "pause"}
    (tmp_path / SWEEP / "optim.lr=0.1,seed=0" / "result.json").write_text('{"status": "failed"}')
    new = a_run(tmp_path / RUNS / "13-00-00-new", val=None, curve=[0.3])
    with locked(new):
        news = get(address, column="status", since=first["version"])
        assert sorted(news["rows"].values()) == [["failed"], ["running"]]
        assert [(mark, facts["step"]) for mark, facts in news["live"].items()] == [(str(new), 10)]
    assert get(address, column="status", since=news["version"])["rows"] == {str(new): ["unfinished"]}
    shutil.rmtree(new)
    gone = get(address, since=news["version"] + 1)
    assert (gone["of"], gone["rows"], get(address, "curve", run=str(new))) == (4, {}, 404)


def test_what_is_damaged_or_no_number_is_shown(address: str, tmp_path: Path) -> None:
    odd = "odd: .nan\nfar: .inf\nlarge: 123456789012345678901\n"
    run = a_run(tmp_path / RUNS / "12-00-00-odd", config=odd, curve=[0.5, float("nan"), *[0.75] * 1000])
    (run / "labels.json").write_text(json.dumps({"note": "x" * 5000, "tags": [EVIL]}))
    a_run(tmp_path / RUNS / "12-00-01-torn").joinpath("result.json").write_text("{")
    answer = get(address, column=["status", "odd", "far", "large", "note", "tags"])
    damaged, row = answer["rows"].values()
    assert (damaged[0], row[:4], len(row[4]), row[5]) == (
        "damaged",
        ["finished", "NaN", "Infinity", "123456789012345678901"],
        300,
        EVIL,
    )
    assert "result.json" in get(address, "curve", run=answer["order"][0])["said"]
    curve = get(address, "curve", run=answer["order"][1])["curve"]
    assert (len(curve["steps"]) <= 200, curve["steps"][-1], curve["means"][-1]) == (True, 10020, 0.75)
    several = a_run(tmp_path / RUNS / "12-00-02-several")
    for seed in (0, 1):
        a_run(several / "members" / f"fold-{seed}", seed=seed, curve=[0.25, 0.5 + seed])
    assert get(address)["order"][0] == str(several)
    assert get(address, "curve", run=str(several))["curve"]["means"] == [0.25, 1.0]


def test_other_names_of_this_machine_other_methods_and_paths_are_refused(address: str) -> None:
    for host in ("127.0.0.1", "localhost:16006", "[::1]:80"):
        assert get(address, headers={"Host": host})["of"] == 0
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:6006", "localhost@evil.example", ""):
        assert get(address, headers={"Host": host}) == 403
    for path in ("nosuch", "../run_table.py", "run_table.py", "curve", "favicon.ico"):
        assert get(address, path) == 404
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address, data=b"{}", timeout=PATIENCE_SECONDS)
    headers = get(address, "run_table.js")
    assert "script-src 'self';" in headers["Content-Security-Policy"]
    assert "Set-Cookie" not in headers


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.slow
def test_the_page(address: str, tmp_path: Path) -> None:
    a_sweep(tmp_path, VALUES, curve=[0.1, 0.3, 0.2])
    evil = a_run(tmp_path / RUNS / f"11-00-00-{EVIL}", lr=1.0, val=0.9)
    (evil / "labels.json").write_text(json.dumps({"tags": [EVIL], "note": "<script>document.title='owned'</script>"}))
    with browser(tmp_path / "browser", size=(1280, 800)) as page:

        def first(column: int) -> str:
            return str(page.evaluate(f"document.querySelector('tr.run')?.children[{column}]?.textContent"))

        def type_filter(text: str) -> None:
            box = "document.getElementById('where')"
            page.evaluate(f"{box}.value = {json.dumps(text)}; {box}.dispatchEvent(new Event('input'))")

        page.open(address, "optim.lr=0.1,seed=1", EVIL, "val/accuracy")
        page.evaluate("[...document.querySelectorAll('th button')].find(each => each.textContent === 'best').click()")
        until(lambda: first(3) == "0.9000", "the best first")
        assert page.count("tr.run") == 5
        page.evaluate("document.querySelector('tr.run').dispatchEvent(new MouseEvent('mouseenter'))")
        until(lambda: EVIL in str(page.evaluate("document.getElementById('card').textContent")), "the card")
        assert (page.count("img"), page.count("body script"), page.evaluate("document.title")) == (0, 0, "Runs")
        type_filter("optim.lt>1")
        until(lambda: "nearest: optim.lr" in page.text(), "the mistake")
        type_filter("optim.lr<1")
        until(lambda: "4 of 5" in page.text(), "the filter")
        assert "no run has this key" not in page.text()
        page.evaluate("document.querySelector('tr.run').dispatchEvent(new MouseEvent('mouseenter'))")
        page.wait_for_elements("#card polyline", 1)
        a_run(tmp_path / RUNS / "14-00-00-late", lr=0.5)
        until(lambda: "5 of 6" in page.text(), "the run that came")
        page.evaluate("document.querySelector('#group summary').click()")
        until(lambda: page.count("#group input[type=checkbox]"), "the keys")
        page.evaluate(
            "[...document.querySelectorAll('#group label')].find(each => each.textContent === ' optim.lr').click()"
        )
        until(lambda: page.count("tr.run") == 3, "the groups")
        cells = "[...document.querySelectorAll('tr.run')].map(row => [...row.children].map(cell => cell.textContent))"
        assert ["0.1", "2", "val/accuracy", "0.6250", "0.1768", "2", ""] in page.evaluate(cells)
        assert page.evaluate("document.title") == "Runs"
