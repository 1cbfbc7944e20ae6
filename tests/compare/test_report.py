from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from lightkit.compare.comparison import RunComparison, build_comparison
from lightkit.compare.grouping import read_curves, thinned
from lightkit.compare.report import as_csv, draw_png, html_page, markdown, p_value, tables
from lightkit.runs.index import read_record
from tests.compare.made import SWEEP, a_run, a_sweep


@pytest.fixture
def made(tmp_path: Path) -> RunComparison:
    folder = a_sweep(tmp_path, {0.1: [0.5, 0.75], 0.01: [0.25, 0.5]}, curve=[0.1, 0.4])
    return build_comparison([read_record(each) for each in sorted(folder.iterdir())], baseline="lr=0.1")


def test_the_table_of_groups(made: RunComparison) -> None:
    groups, seeds = tables(made)
    assert groups.heads == ["", "lr", "n", "val/accuracy", "Δ", "test/accuracy", "Δ"]
    assert groups.rows[0][:5] == ["baseline", "0.1", "2", "0.6250 ± 0.1768 *", ""]
    assert groups.rows[1][:5] == ["", "0.01", "2", "0.3750 ± 0.1768  ", "-0.2500"]
    assert seeds.rows[0][:5] == ["lr=0.01", "val/accuracy", "paired", "2", "-0.2500"]
    assert seeds.notes == ["fewer than 3 seeds say nothing about chance: train with seed=0,1,2,3,4"]


@pytest.mark.parametrize(("tests", "told"), [((0.6, 0.5), False), ((0.5, 0.6), True), ((0.6, 0.6), False)])
def test_who_chooses_by_test_rows_is_told(tmp_path: Path, tests: tuple[float, float], told: bool) -> None:
    for lr, val, test in zip((0.1, 0.01), (0.9, 0.8), tests):
        a_run(tmp_path / str(lr), lr=lr, val=val, test=test)
    made = build_comparison([read_record(each) for each in sorted(tmp_path.iterdir())])
    assert any("measured on new rows" in note for note in tables(made)[0].notes) is told


def test_csv_has_every_figure_in_a_column(made: RunComparison) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert (rows[1]["optim.lr"], rows[1]["val/accuracy mean"], rows[1]["val/accuracy best"]) == ("0.01", "0.375", "0")
    assert float(rows[1]["val/accuracy delta"]) == -0.25


def test_markdown_is_tables(made: RunComparison) -> None:
    lines = markdown(made).splitlines()
    assert lines[0] == "|  | lr | n | val/accuracy | Δ | test/accuracy | Δ |"
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    assert "0.6250 ± 0.1768 \\*" in lines[2]


def test_small_p_values_are_not_zero() -> None:
    assert (p_value(None), p_value(1e-9), p_value(0.04321)) == ("–", "< 0.0001", "0.0432")


def test_curves_are_means_over_the_seeds_that_came_so_far(tmp_path: Path) -> None:
    a_run(tmp_path / SWEEP / "a", seed=0, curve=[0.1, 0.4, 0.7])
    a_run(tmp_path / SWEEP / "b", seed=1, curve=[0.3, 0.4])
    made = build_comparison([read_record(each) for each in sorted((tmp_path / SWEEP).iterdir())])
    curve = read_curves(made.rows[0].group)["val/accuracy"]
    assert (curve.steps, curve.epochs, curve.seeds) == ([10, 20, 30], [1, 2, 3], [2, 2, 1])
    assert curve.means == pytest.approx([0.2, 0.4, 0.7])
    assert curve.deviations == pytest.approx([0.1414214, 0, 0], abs=1e-6)


def test_long_curves_keep_their_ends() -> None:
    kept = thinned(range(1, 10_001))
    assert (kept[0], kept[-1]) == (1, 10_000)
    assert len(kept) <= 301
    assert thinned([]) == []


def test_the_page_needs_nothing_else_and_holds_what_the_tables_say(made: RunComparison) -> None:
    page = html_page(made, "<b>runs</b>")
    assert "&lt;b&gt;runs" in page
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    assert data["groups"] == json.loads(json.dumps(made.plain()))["groups"]
    assert data["curves"][0]["val/accuracy"]["means"] == [0.1, 0.4]
    addresses = set(re.findall(r"https?://[^\"' ]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody opens
    assert not re.search(r"<(link|img|iframe|script)[^>]+(src|href)=", page)


def test_text_of_others_does_not_leave_its_place(tmp_path: Path) -> None:
    odd = "</script><script>alert(1)</script>"
    for name in ("a", odd.replace("/", "-")):
        config = f"name: x\nmodel:\n  note: {json.dumps(odd if name != 'a' else 'plain')}\nseed: 0\n"
        a_run(tmp_path / SWEEP / name, config=config.replace("{", "{{").replace("}", "}}"))
    made = build_comparison([read_record(each) for each in sorted((tmp_path / SWEEP).iterdir())])
    page = html_page(made, odd)
    assert page.count("</script>") == 2
    assert "alert(1)</" not in page


def test_pictures_of_runs_with_and_without_curves_and_keys(made: RunComparison, tmp_path: Path) -> None:
    assert draw_png(made, "demo").startswith(b"\x89PNG")
    one = build_comparison([read_record(a_run(tmp_path / "one"))])
    assert draw_png(one, "demo").startswith(b"\x89PNG")
    assert tables(one)[0].rows[0][0] == "one"
