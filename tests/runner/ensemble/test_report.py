"""What an ensemble came to, in numbers and in words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.config import compose
from lightkit.ensemble.combining import decisions, soft
from lightkit.ensemble.methods import Combination
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.ensemble.oof import MemberPredictions
from lightkit.loggers.events import read_scalars
from lightkit.runner import Runner
from lightkit.runner.ensemble.figures import draw, epochs, over_size
from lightkit.runner.ensemble.report import Outcome, comparison, make_report, summary_lines, values_of

ROWS = 60
OUTPUTS = {"multiclass": 3, "binary": 1, "multilabel": 4, "regression": 2}


def predictions(task: str, seed: int, *, test: bool = True) -> MemberPredictions:
    generator = torch.Generator().manual_seed(0)
    width = OUTPUTS[task]
    split = torch.tensor([1] * 30 + [2 if test else 1] * 30, dtype=torch.uint8)
    shape = (ROWS,) if task == "multiclass" else (ROWS, width)
    targets = torch.randint(0, 3 if task == "multiclass" else 2, shape, generator=generator)
    truth = torch.nn.functional.one_hot(targets, 3) if task == "multiclass" else targets
    noise = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(seed))
    logits = 2.0 * truth + noise
    found = {"multiclass": logits.softmax(1), "regression": logits}.get(task, (logits - 1).sigmoid())
    counts = torch.ones(ROWS, dtype=torch.int64)
    targets = targets if task == "multiclass" else targets.float()
    return MemberPredictions(torch.arange(ROWS), split, counts, found, targets, task)


def result(name: str, value: float, **role: Any) -> MemberResult:
    content = {
        "metrics": {"train/loss_step": 0.1, "speed/samples_per_second": 9.0, "val/score": 0.0, "test/score": 0.0},
        "best": {"val/score": value},
        "test": {"test/score": value / 2},
        "epochs": 3,
    }
    return MemberResult(RunMember(name, {"ensemble": {"member": role}}), Path(name), content)


def outcome(task: str = "multiclass", *, size: int = 3, test: bool = True, mode: str = "max", **role: Any) -> Outcome:
    own = [predictions(task, seed, test=test) for seed in range(size)]
    together = replace(own[0], predictions=soft(torch.stack([member.predictions for member in own])))
    members = [result(f"{number:02}", 0.5 + 0.1 * (number % 2), **role) for number in range(size)]
    return Outcome(
        method="Voting",
        rule="soft",
        made=Combination(members, own, together, {member.member.name: 1 / size for member in members}, views=[]),
        values={"val/score": 0.75, "test/score": 0.5, "test/other": 1.0},
        member_values={member.member.name: values_of(member) for member in members},
        monitor="val/score",
        mode=mode,
    )


@pytest.mark.parametrize("task", OUTPUTS)
def test_what_is_defined_for_the_task_is_there(task: str) -> None:
    made = outcome(task)
    report = make_report(made, seconds=1.5, parameters=1234)
    json.dumps(report, allow_nan=False)
    classes = task != "regression"
    assert ("disagreement" in report["diversity"]) == ("ece" in report["calibration"]) == classes
    assert ("temperature" in report["calibration"]) == classes
    assert -1 <= report["diversity"]["error_correlation"] <= 1
    assert math.isfinite(report["calibration"]["log_likelihood_calibrated"])
    assert 1 <= report["independent_networks"] <= 3
    assert report["cost"] == {"seconds": 1.5, "epochs": 9, "networks": 3, "parameters": 1234}
    text = "\n".join(summary_lines(report))
    assert ("ECE" in text) == ("disagree" in text) == classes
    assert "nan" not in text
    figures = {"test/disagreement", "test/reliability"} if classes else set()
    assert set(draw(made, None)) == {"test/error_correlation", *figures}


def test_mean_and_best_member_and_what_is_gained() -> None:
    made = outcome()
    report = make_report(made, seconds=1.0, parameters=1)
    assert report["best_member"] == "01"
    assert report["members"]["01"] == {"val/score": 0.6, "test/score": 0.3}
    assert report["mean"] == pytest.approx({"val/score": 1.6 / 3, "test/score": 0.8 / 3})
    assert report["gain"] == {
        "metric": "test/score",
        "over_mean": pytest.approx(0.5 - 0.8 / 3),
        "over_best": pytest.approx(0.2),
    }
    assert "0.2000 better than the best (01)" in summary_lines(report)[0]
    assert make_report(outcome(mode="min"), seconds=1.0, parameters=1)["gain"]["over_best"] == pytest.approx(-0.25)
    heads, rows = comparison(report, made.values, made.monitor)
    assert heads == ["metric", "mean member", "best member (01)", "ensemble"]
    assert rows == [
        ["val/score", "0.5333", "0.6000", "0.7500"],
        ["test/score", "0.2667", "0.3000", "0.5000"],
        ["test/other", "", "", "1.0000"],
    ]
    assert values_of(made.made.members[0], last=True) == {"val/score": 0.0, "test/score": 0.25}


def test_one_member_is_compared_with_nothing() -> None:
    made = outcome(size=1, networks=4, joint="fusion")
    report = make_report(made, seconds=1.0, parameters=1)
    assert comparison(report, made.values, made.monitor)[0] == ["metric", "ensemble"]
    assert report["diversity"] == {}
    assert report["independent_networks"] is None
    assert report["cost"]["networks"] == 4
    assert [line.split()[0] for line in summary_lines(report)] == ["calibration", "cost"]


def test_members_that_depend_on_others_are_no_measure_of_independent_ones() -> None:
    assert make_report(outcome(weights_of="00"), seconds=1.0, parameters=1)["independent_networks"] is None
    sums = make_report(replace(outcome(adds_to=["00"]), rule="last"), seconds=1.0, parameters=1)
    assert sums["diversity"] == sums["gain"] == {}
    assert sums["independent_networks"] is None
    assert comparison(sums, {}, "val/score")[0] == ["metric", "first member (00)", "ensemble"]


def test_without_a_test_split_the_validation_rows_are_judged_by() -> None:
    made = replace(outcome(test=False), values={"val/score": 0.75})
    report = make_report(made, seconds=1.0, parameters=1)
    assert report["gain"]["metric"] == "val/score"
    assert report["diversity"]["split"] == report["calibration"]["split"] == "val"
    assert "temperature" not in report["calibration"]


def test_rows_that_were_left_out_count_for_each_member() -> None:
    own = {"00": {"oof/score": 0.5}, "01": {"oof/score": 0.25, "val/score": 0.9}, "02": {"val/score": 0.1}}
    made = replace(outcome(), member_values=own)
    made = replace(made, values={**made.values, "oof/score": 0.75})
    report = make_report(made, seconds=1.0, parameters=1)
    assert ["oof/score", "0.3750", "0.2500", "0.7500"] in comparison(report, made.values, made.monitor)[1]
    chosen = {**report, "selected_on": ["oof"]}
    names = [row[0] for row in comparison(chosen, made.values, made.monitor)[1]]
    assert "oof/score (selected on)" in names
    assert summary_lines(chosen)[0].startswith("selected     by the rows left out:")


def test_a_whole_run_shows_its_members_and_what_they_come_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.runner.intervals._DRAWS", 20)
    small = ["data=wine", "model.hidden=[8]", "trainer.epochs=2", "device=cpu"]
    typed = [*small, "ensemble=voting", "ensemble.size=2", "metrics.figures=[ensemble]"]
    folder, cfg = tmp_path / "run", compose(typed).cfg
    Runner(cfg, folder, overrides=typed).run()
    lines = capsys.readouterr().out.splitlines()
    passing = ("members finished", "train at once", "one after the other")
    heads = [line.split(" ")[0] for line in lines if line[:1] != " " and not any(text in line for text in passing)]
    assert heads[:9] == ["run", "data", "model", "00", "01", "Voting", "gain", "diversity", "calibration"]
    assert heads[-2:] == ["cost", "folder"]
    result = json.loads((folder / "result.json").read_text())
    assert {"members", "mean", "best_member", "gain", "diversity", "calibration", "cost"} <= set(result)
    assert result["cost"]["networks"] == 2
    drawn = {"disagreement", "error_correlation", "members-over-epochs", "over_size", "reliability"}
    assert {path.stem for path in (folder / "figures").iterdir()} == drawn
    assert not (folder / "members" / "00" / "figures").exists()
    curves = read_scalars(folder)
    assert [step for step, *_ in curves["view/test/accuracy_over_size"]] == [1, 2]
    own, member = ((place / "run.log").read_text() for place in (folder, folder / "members" / "00"))
    assert "Voting of 2" in own
    assert "result after" in member
    assert "result after" not in own
    Runner(cfg, folder).run(resume=True)
    assert "00  finished before, after 2 epochs" in capsys.readouterr().out


def accuracy(rows: MemberPredictions) -> dict[str, float]:
    return {"test/score": float((decisions(rows.predictions, rows.task) == rows.targets).float().mean())}


def test_members_and_ensemble_over_epochs_and_size(tmp_path: Path) -> None:
    made = outcome()
    for member in made.made.members:
        (tmp_path / member.folder).mkdir()
        rows = [{"step": 5 * at, "epoch": at, "val/score": value} for at, value in ((1, 0.5), (2, None), (3, 1.0))]
        text = "".join(json.dumps(row) + "\n" for row in [{"step": 1, "epoch": 0, "train/loss_step": 1.0}, *rows])
        (tmp_path / member.folder / "metrics.jsonl").write_text(text)
    members = [replace(member, folder=tmp_path / member.folder) for member in made.made.members]
    assert epochs(members, "val/score")["01"] == ([1, 3], [0.5, 1.0])
    sizes = over_size(made, accuracy)
    assert sizes is not None
    assert sizes.sizes == [1, 2, 3]
    assert [len(values) for values in sizes.drawn] == [3, 3, 1]
    unequal = {"00": 0.5, "01": 0.5, "02": 0.0}
    found = draw(replace(made, made=replace(made.made, members=members, weights=unequal)), sizes)
    assert {"val/members-over-epochs", "test/over_size", "val/weights"} <= set(found)


def test_sizes_that_are_measured() -> None:
    one = replace(outcome(), rule="last")
    sums, many = over_size(one, accuracy), over_size(outcome(size=40), accuracy)
    assert sums is not None
    assert [len(values) for values in sums.drawn] == [1, 1, 1], "in their order only"
    assert "test/error_correlation" not in draw(one, sums)
    assert many is not None
    assert len(many.sizes) <= 16
    assert (many.sizes[0], many.sizes[-1]) == (1, 40)
    assert over_size(outcome(size=1), accuracy) is None
