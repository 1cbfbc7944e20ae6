"""The tables of the experiments: as measured, and measured by the code as it is."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.report import measure, results, rounding, rows, stamp, tables
from experiments.report.__main__ import main
from lightkit import compose
from tests.conftest import ROOT

LARGE = ("finetune_timm", "transfer_shapes", "transfer_digits", "char_lm", "transfer_text")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in rows.PAGES]
TINY = ("trainer.epochs=1", "scheduler.warmup_epochs=0")


@pytest.fixture
def copy(project: Path) -> Path:
    """A project with our pages and results."""
    for name in rows.PAGES:
        folder = project / "experiments" / name
        folder.mkdir()
        for file in ("README.md", "results.json"):
            if (ROOT / "experiments" / name / file).is_file():
                shutil.copy(ROOT / "experiments" / name / file, folder)
    (project / tables.SUMMARY).parent.mkdir(parents=True)
    shutil.copy(ROOT / tables.SUMMARY, project / tables.SUMMARY)
    return project


@pytest.fixture
def tiny(copy: Path, monkeypatch: pytest.MonkeyPatch) -> rows.Variant:
    """The page `wine` with two runs of one epoch."""
    variant = rows.Variant("this experiment", "wine", (0, 1), overrides=TINY)
    monkeypatch.setitem(rows.PAGES, "wine", dataclasses.replace(rows.PAGES["wine"], variants={"network": variant}))
    return variant


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(("docs/", "experiments/"))]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_tables_are_as_measured_and_the_code_would_measure_the_same(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["--check", name])

    assert (status, said(capsys)) == (0, [])


@pytest.mark.thorough
@pytest.mark.parametrize("file", [str(tables.SUMMARY), "experiments/wine/README.md"])
def test_an_edited_table_is_found(file: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited = (copy / file).read_text(encoding="utf-8")
    value = tables.number(
        rows.ACCURACY, results.read(copy / "experiments", "wine")["variants"]["network"]["mean"]["test/accuracy"]
    )
    assert value in edited
    (copy / file).write_text(edited.replace(value, "99.90 %"), encoding="utf-8")

    assert main(["--check", "wine", "--root", str(copy)]) == 1
    assert said(capsys) == [f"{file}: the table is not that of the results: python -m experiments.report"]

    assert main(["wine", "--root", str(copy)]) == 0
    assert main(["--check", "wine", "--root", str(copy)]) == 0


def test_an_edited_number_among_the_results_is_found(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = results.read(copy / "experiments", "wine")
    kept["variants"]["network"]["mean"]["test/accuracy"] += 0.01
    results.write(copy / "experiments", "wine", kept)
    main(["wine", "--root", str(copy)])

    assert main(["--check", "wine", "--root", str(copy)]) == 1
    assert "mean, std or n do not follow from the values" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optim: {lr: 0.004}", "optim.lr: measured with 0.003, now 0.004"),
        ("data: {split: {test: 0.25}}", "data.split.test: measured with 0.2, now 0.25"),
    ],
)
def test_a_changed_configuration_is_found(
    change: str, message: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = (ROOT / "experiments" / "wine" / "wine.yaml").read_text(encoding="utf-8")
    head, _, _ = ours.partition("name: wine")
    rest = "name: wine\nmodel: {norm: none, hidden: [128], dropout: 0.5}\n"
    (copy / "experiments" / "wine" / "wine.yaml").write_text(f"{head}{rest}{change}\n", encoding="utf-8")

    assert main(["--check", "wine", "--root", str(copy)]) == 1
    assert f"experiments/wine/results.json: network: {message}" in said(capsys)


def test_changed_behaviour_is_found(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.nn.functional.relu", lambda x, inplace=False: x.sigmoid())

    assert main(["--check", "wine", "--root", str(copy)]) == 1
    assert [line.partition(": measured")[0] for line in said(capsys)] == [
        "experiments/wine/results.json: network: loss of the first steps",
        "experiments/wine/results.json: network: gradient of the first steps",
    ]


def test_an_option_that_was_added_is_no_change(copy: Path) -> None:
    kept = results.read(copy / "experiments", "wine")
    del kept["variants"]["network"]["stamp"]["configuration"]["data.mixup.alpha"]
    results.write(copy / "experiments", "wine", kept)

    assert main(["--check", "wine", "--root", str(copy)]) == 0


def test_rounding_of_another_processor_is_no_change() -> None:
    steps = {"loss": [1.2345, 0.9], "gradient": [1e-9]}
    then, now = (
        {"configuration": {}, "first_steps": each} for each in (steps, {"loss": [1.2346, 0.9], "gradient": [0]})
    )

    assert list(stamp.compare(then, now)) == []
    now["first_steps"]["loss"][0] = 1.25
    assert len(list(stamp.compare(then, now))) == 1


@pytest.mark.thorough
def test_finished_runs_are_kept_and_the_rest_is_run(
    tiny: rows.Variant, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = copy / "outputs" / "measured"
    assert main(["--measure", "wine", "--root", str(copy)]) == 0
    first = [measure.finished(measure.folder_of(outputs, "wine", "network", seed)) for seed in tiny.seeds]
    shutil.rmtree(measure.folder_of(outputs, "wine", "network", 1))
    capsys.readouterr()

    assert main(["--measure", "wine", "--root", str(copy)]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(outputs))]
    assert [line.rpartition(": ")[2] == "there already" for line in lines] == [True, False]
    kept = results.read(copy / "experiments", "wine")["variants"]["network"]
    assert kept["values"]["test/accuracy"] == [run["test"]["test/accuracy"] for run in first if run]
    assert kept["n"] == 2
    assert main(["--check", "wine", "--root", str(copy)]) == 0


@pytest.mark.thorough
def test_a_run_of_another_configuration_is_run_again_and_not_kept(tiny: rows.Variant, copy: Path) -> None:
    outputs = copy / "outputs" / "measured"
    list(measure.measure(outputs, "wine", "network"))
    page = rows.PAGES["wine"]
    other = dataclasses.replace(tiny, overrides=(*TINY, "optim.lr=0.1"))
    page.variants["network"] = other

    assert results.gather_variant(outputs, page, "wine", "network")["seeds"] == []
    assert all("there already" not in line for line in measure.measure(outputs, "wine", "network"))
    assert results.gather_variant(outputs, page, "wine", "network")["seeds"] == [0, 1]


def test_values_of_runs_that_are_gone_stay_while_the_configuration_is_the_same(tiny: rows.Variant) -> None:
    page, configuration = rows.PAGES["wine"], measure.learnt(compose(tiny.seeded(0)).cfg)
    before = {"seeds": [0], "values": {"a": [0.5]}, "stamp": {"configuration": configuration}}
    found = {"seeds": [1], "values": {"a": [0.7]}}

    merged = results.with_earlier(found, before, page, "network")
    assert (merged["seeds"], merged["values"], merged["n"]) == ([0, 1], {"a": [0.5, 0.7]}, 2)
    before["stamp"]["configuration"] = {**configuration, "optim.lr": 9.0}
    assert results.with_earlier(found, before, page, "network") is found


def test_a_page_without_results_says_so(copy: Path) -> None:
    (copy / "experiments" / "wine" / "results.json").unlink()

    main(["wine", "--root", str(copy)])

    assert "| `wine` |  | not measured" in (copy / tables.SUMMARY).read_text(encoding="utf-8")
    assert "not measured" in (copy / "experiments" / "wine" / "README.md").read_text(encoding="utf-8")


def test_unknown_page_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["wines"])

    assert "no such page: wines; there are digits_cnn" in capsys.readouterr().err


def test_difference_is_taken_seed_by_seed_and_against_a_classic_without_seeds() -> None:
    network = {"seeds": [0, 1, 2], "values": {"x": [3.0, 5.0, 7.0]}}
    same = {"seeds": [2, 0, 1], "values": {"x": [6.0, 2.0, 4.0]}}
    alone = {"seeds": [0], "values": {"x": [1.0]}}

    assert results.difference(network, same, "x") == (1.0, 0.0)
    assert results.difference(network, alone, "x") == (4.0, pytest.approx(2 / 3**0.5))


def test_every_experiment_is_on_a_page() -> None:
    folders = {file.parent.name for file in (ROOT / "experiments").glob("*/*.yaml")}

    apart = {"ensembles", "segment_shapes", "detect_shapes", "gan_ring", "tasks"}  # measured by modules of their own
    assert folders == {*rows.PAGES, *apart}


def test_made_up_texts_are_the_same_everywhere() -> None:
    texts = stamp.made_up_texts(files=2, words=8)

    assert [*texts] == ["text_0", "text_1"]
    assert texts["text_0"].split()[:3] == ["a", "for", "with"]


@pytest.mark.thorough
def test_older_instructions_are_those_that_pytorch_takes() -> None:
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **rounding.INSTRUCTIONS["none"]},
        capture_output=True,
        text=True,
    )

    assert found.stdout.strip() in ("DEFAULT", "NO AVX")


def test_what_runs_differ_by_on_other_processors_is_in_the_table(tiny: rows.Variant, copy: Path) -> None:
    outputs = copy / "outputs" / "measured"
    found = {"variants": {"network": results.summary({"seeds": [0, 1], "values": {"test/accuracy": [0.9, 0.8]}})}}
    ran = {"avx2": (0.91, 0.81), "none": (0.9, 0.77)}
    for kind, values in ran.items():
        for seed, value in enumerate(values):
            folder = measure.folder_of(rounding.beside(outputs, kind), "wine", "network", seed)
            folder.mkdir(parents=True)
            told = {"status": "finished", "test": {"test/accuracy": value}}
            (folder / "result.json").write_text(json.dumps(told), encoding="utf-8")

    apart = rounding.spread(outputs, "wine", found)
    assert apart == {"test/accuracy": {"run": pytest.approx(0.03), "mean": pytest.approx(0.015)}}
    assert tables.elsewhere(rows.ACCURACY, {"rounding": apart}) == "1.50; a run 3.00"
    assert tables.elsewhere(rows.ACCURACY, found) == ""

    (folder / "result.json").unlink()
    assert rounding.spread(outputs, "wine", found)["test/accuracy"]["run"] == pytest.approx(0.01), "all seeds or none"


@pytest.mark.parametrize(("gap", "level"), [(0.004, ", level"), (0.4, "")])
def test_a_difference_that_proves_nothing_is_called_level(gap: float, level: str) -> None:
    network = {"seeds": [0, 1, 2], "values": {"test/accuracy": [0.5 + gap, 0.51 + gap, 0.49 + gap]}}
    classic = {"seeds": [0, 1, 2], "values": {"test/accuracy": [0.51, 0.49, 0.5]}, "label": "trees"}
    found = {"variants": {"network": results.summary(network)}, "classics": {"classic": results.summary(classic)}}

    shown = tables._headline(rows.PAGES["wine"], found)

    assert shown[3].endswith(", level") == bool(level)


def test_where_a_name_comes_from_changes_no_result(tmp_path: Path) -> None:
    (tmp_path / "wine").mkdir()
    digests = []
    for text in ("from a import b\n\nx = b()\n", "from c import b\n\nx = b()\n", "from a import b\n\nx = b(1)\n"):
        (tmp_path / "wine" / "parts.py").write_text(text)
        digests.append(stamp.sources(tmp_path, "wine"))
    assert digests[0] == digests[1] != digests[2]
