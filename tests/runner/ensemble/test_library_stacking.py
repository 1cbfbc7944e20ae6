"""Stacks of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_wine

import lightkit
from lightkit.common.errors import UserError
from lightkit.config import to_plain
from lightkit.ensemble import stacking
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner import Runner
from lightkit.runner.ensemble.finished import trained_rows
from lightkit.runner.run import combine_runs
from lightkit.runs.reading import read_json, read_run
from lightkit.trainer.callbacks import Callback
from tests.runner.finished_runs import member, trained

SPLIT = ("data.split.val=0.3", "trainer.epochs=2", "optim.lr=0.05")


class KillAt(Callback):
    """Ends the training of a meta-model, as a crash would."""

    step: ClassVar[int | None] = None

    def on_step(self, trainer: Any) -> None:
        if trainer.state.step == self.step:
            raise RuntimeError("killed")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a`; `c`, which scales its inputs in another way; `few`, with few rows to spare."""
    home = tmp_path_factory.mktemp("runs")
    trained(home / "a", *SPLIT)
    trained(home / "c", *SPLIT, "model.hidden=[6]", "data.normalize=minmax")
    trained(home / "few", "data.split.val=0.05")
    return home


@pytest.fixture(scope="module")
def vote(runs: Path) -> Path:
    """A vote beside these."""
    return trained(runs / "v", *SPLIT, "ensemble=voting", "ensemble.size=2", "ensemble.engine=sequential")


def stack(out: Path, *runs: Path, own: tuple[str, ...] = ()) -> dict[str, Any]:
    overrides = ["ensemble=stacking", f"ensemble.size={len(runs)}", "ensemble.holdout=0.34"]
    overrides += ["ensemble.meta.trainer.steps=120", *own]
    method = to_plain(read_run(runs[0], overrides, new=True).cfg.ensemble)
    return combine_runs([member(f"{i:02}-{run.name}", run) for i, run in enumerate(runs)], out, method=method, name="s")


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(("strictness", "used"), [(-1e6, True), pytest.param(1e6, False, marks=pytest.mark.thorough)])
def test_a_stack_predicts_as_its_result_says(
    runs: Path, vote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strictness: float, used: bool
) -> None:
    monkeypatch.setattr(stacking, "STRICTNESS", strictness)
    out = tmp_path / "out"
    result = stack(out, runs / "a", vote, runs / "c", own=("ensemble.passthrough=true",))
    assert (result["stacking"]["used"] == "stacking") == used
    runner = Runner(read_run(out).cfg, out)
    for split, values in runner.evaluate_splits(["val", "test"]).items():
        expected = {name: value for name, value in result["metrics"].items() if name.startswith(split)}
        assert values == pytest.approx(expected, abs=1e-5)
    kept = MemberPredictions.read(out / "oof.safetensors").of_split("test")
    inputs = torch.as_tensor(load_wine().data, dtype=torch.float32)
    predictions = lightkit.load_ensemble(out).predict(inputs[kept.rows])
    assert torch.allclose(predictions, kept.predictions, atol=1e-5)
    rows = runner.predict("test")
    assert [row["row"] for row in rows] == kept.rows.tolist()
    assert [row["p(class_0)"] for row in rows] == pytest.approx(kept.predictions[:, 0].tolist(), abs=1e-5)


def rows_of(folder: Path, split: str) -> torch.Tensor:
    """The rows of a split of a run."""
    return torch.tensor([row["row"] for row in Runner(read_run(folder).cfg, folder).predict(split)])


def test_the_meta_model_learns_from_rows_that_no_run_trained_on(runs: Path, tmp_path: Path) -> None:
    stack(tmp_path / "out", runs / "a", runs / "c", own=("ensemble.meta.trainer.steps=20",))
    meta, plan = tmp_path / "out" / "members" / "02-meta", read_json(tmp_path / "out" / "ensemble.json")
    assert plan["members"][2]["depends_on"] == ["00-a", "01-c"]
    learnt, judged = rows_of(meta, "train"), rows_of(meta, "val")
    unseen = MemberPredictions.read(runs / "a" / "oof.safetensors").of_split("val").rows
    assert torch.equal(torch.cat([learnt, judged]).sort().values, unseen)
    assert 0 < len(judged) < len(learnt)
    own = read_json(meta / "result.json")["test"]
    assert Runner(read_run(meta).cfg, meta).evaluate("test", "last") == pytest.approx(own, abs=1e-6)


@pytest.mark.thorough(first=0)
def test_a_stack_that_was_killed_goes_on_bit_for_bit(
    runs: Path, vote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = "+ensemble.meta.trainer.callbacks.kill={_target_: tests.runner.ensemble.test_library_stacking.KillAt}"
    own, whole, cut = (kill, "ensemble.solver=gradient"), tmp_path / "whole", tmp_path / "cut"
    stack(whole, runs / "a", vote, own=own)
    monkeypatch.setattr(KillAt, "step", 110)
    with pytest.raises(RuntimeError, match="killed"):
        stack(cut, runs / "a", vote, own=own)
    monkeypatch.setattr(KillAt, "step", None)
    with pytest.raises(UserError, match="chosen when the ensemble began"):
        Runner(read_run(cut, ["ensemble.size=3"]).cfg, cut).run(resume=True)
    Runner(read_run(cut).cfg, cut).run(resume=True)
    assert (cut / "ensemble.json").read_bytes() == (whole / "ensemble.json").read_bytes()
    for file in ("oof.safetensors", "ensemble.safetensors"):
        ours, theirs = load_file(cut / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items()), file


@pytest.mark.thorough(first=0)
def test_a_vote_of_finished_runs_has_nothing_to_go_on_with(runs: Path, tmp_path: Path) -> None:
    method, out = {"_target_": "lightkit.ensemble.methods.Voting", "members": [], "member": {}}, tmp_path / "out"
    combine_runs([member("00", runs / "a"), member("01", runs / "c")], out, method=method, name="x")
    with pytest.raises(UserError, match="nothing is trained in an ensemble of finished runs"):
        Runner(read_run(out).cfg, out).run(resume=True)
    for text in ('{"rows": {}}', '{"rows": {}, "members": 7}', '{"rows": {}, "members": [{}, {}]}', "{"):
        (out / "ensemble.json").write_text(text)
        with pytest.raises(UserError, match=r"the record of the ensemble is damaged: ensemble\.json"):
            Runner(read_run(out).cfg, out).run(resume=True)


@pytest.mark.parametrize(
    ("names", "own", "message"),
    [
        (("a", "c"), ("ensemble.holdout=0",), "ensemble.holdout: a meta-model learns from some of the rows"),
        (("a", "c"), ("ensemble.meta.trainer.early_stopping.patience=3",), "is judged by the others"),
        (("few", "few"), (), "too few rows that no run trained on"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    runs: Path, tmp_path: Path, names: tuple[str, ...], own: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        stack(tmp_path / "out", *(runs / name for name in names), own=own)
    assert not (tmp_path / "out").exists()


def test_rows_of_a_base_never_feed_the_meta_model(runs: Path, tmp_path: Path) -> None:
    base = trained(tmp_path / "base", "data.split.val=0.3", "data.split.seed=3")
    tuned = trained(tmp_path / "tuned", *SPLIT, f"finetune.weights.path={base}")
    stack(tmp_path / "out", tuned, runs / "a", own=("ensemble.meta.trainer.steps=20",))
    seen = trained_rows(read_run(base).cfg, base)
    for split in ("train", "val", "test"):
        rows = rows_of(tmp_path / "out" / "members" / "02-meta", split)
        assert len(rows)
        assert not torch.isin(rows, seen).any()
