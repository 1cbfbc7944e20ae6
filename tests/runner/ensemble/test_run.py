"""The run of an ensemble: its plan, what it records, and that its files say what evaluation says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import lightkit
from lightkit.assembly import build
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose, load_run
from lightkit.ensemble.file import read_ensemble
from lightkit.ensemble.methods import Combination, RunFacts, Voting
from lightkit.ensemble.methods.base import member
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.tasks import Residual
from lightkit.runner import Runner
from lightkit.runner.ensemble.trained import find_trained
from lightkit.runs.folder import RunFolder
from tests.ensemble.methods.running import QUICK, facts, train
from tests.resume.ensembles import BASE, config


def trained(place: Path, method: str, *more: str) -> tuple[Runner, dict[str, Any]]:
    """Train an ensemble; return it and the content of `result.json`."""
    run = Runner(config(method, *more), place)
    run.run()
    result: dict[str, Any] = json.loads((place / "result.json").read_text())
    return run, result


class Leader(Voting):
    """A vote in which one member decides, as `combine` says with its reasons."""

    def combine(self, done: Any, read: Any, facts: RunFacts) -> Combination:
        made = super().combine(done, read, replace(facts, given=[0.0, 1.0]))
        return replace(made, facts={"leader": done[1].member.name}, lines=["led by the last"], selected_on=["val"])


def test_a_method_says_what_its_members_come_to(tmp_path: Path) -> None:
    target = f"ensemble._target_={__name__}.Leader"
    run, result = trained(tmp_path, "voting", "ensemble.size=2", "ensemble.weights=uniform", target)
    assert (result["leader"], result["weights"]) == ("01", {"00": 0.0, "01": 1.0})
    assert result["selected_on"] == ["val"]
    assert json.loads((tmp_path / "ensemble.json").read_text())["leader"] == "01"
    assert "led by the last" in (tmp_path / "run.log").read_text()
    own = json.loads((tmp_path / "members" / "01" / "result.json").read_text())["test"]
    assert run.evaluate()["test/loss"] == pytest.approx(own["test/loss"], rel=1e-5)


def newest(run: Path) -> dict[str, torch.Tensor]:
    """Return the last weights of a run."""
    path = CheckpointStore(run / "checkpoints", mode="min").newest()
    assert path is not None
    return content.load_model_state(path)


def agrees(run: Runner, result: dict[str, Any], *splits: str) -> None:
    """Ensure that an evaluation says what the result says."""
    for values in run.evaluate_splits(splits).values():
        expected = {name: result["metrics"][name] for name in values}
        if result["rule"] == "hard":  # many shares are equal, and which of them a softmax rounds up is open
            values, expected = (
                {name: value for name, value in own.items() if not name.endswith("auroc")} for own in (values, expected)
            )
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_plan_and_the_result_are_recorded(tmp_path: Path) -> None:
    run, result = trained(tmp_path, "voting", "ensemble.size=2", "ensemble.weights=uniform")
    plan = json.loads((tmp_path / "ensemble.json").read_text())
    assert (plan["method"], plan["settings"]["size"]) == ("Voting", 2)
    assert [row["name"] for row in plan["members"]] == ["00", "01"]
    for row in plan["members"]:
        assert (row["status"], row["folder"], row["depends_on"]) == ("finished", f"members/{row['name']}", [])
        assert (row["rows"], row["epochs"], row["weight"]) == ("all", 2, 0.5)
        assert json.loads((tmp_path / row["folder"] / "result.json").read_text())["status"] == "finished"
    assert (result["status"], result["method"], result["rule"]) == ("finished", "Voting", "soft")
    assert result["objective"]["value"] == result["metrics"][result["objective"]["name"]]
    assert result["weights"] == {"00": 0.5, "01": 0.5}
    assert result["members"].keys() == {"00", "01"}
    assert result["best_member"] in result["members"]
    assert (result["cost"]["networks"], result["cost"]["epochs"]) == (2, 4)
    agrees(run, result, "val", "test")


@pytest.mark.thorough
@pytest.mark.parametrize("how", [("ensemble.weights=uniform", "ensemble.vote=hard"), ("ensemble.weights=validation",)])
def test_evaluation_says_what_the_result_says(how: tuple[str, ...], tmp_path: Path) -> None:
    agrees(*trained(tmp_path, "voting", *how), "val", "test")


def test_snapshots_count_with_their_last_weights(tmp_path: Path) -> None:
    more = ("ensemble.size=2", "optim.lr=0.3", "trainer.epochs=8", "optim=adam")  # the best come early
    run, result = trained(tmp_path, "snapshot", *more)
    stored = {member.name: member.state for member in read_ensemble(tmp_path / "ensemble.safetensors").members}
    for name, state in stored.items():
        last = newest(tmp_path / "members" / name)
        assert all(state[key].equal(value) for key, value in last.items())
        predicted = MemberPredictions.read(tmp_path / "members" / name / "oof.safetensors").of_split("test")
        member = Runner(load_run(tmp_path / "members" / name).cfg, tmp_path / "members" / name)
        rows = {row["row"]: [*row.values()][3:] for row in member.predict("test", "last")}  # the probabilities
        expected = torch.tensor([rows[int(row)] for row in predicted.rows])
        assert torch.allclose(predicted.predictions, expected, atol=1e-4)
    agrees(run, result, "test")


@pytest.mark.thorough(first=0)
def test_rounds_learn_from_the_weights_that_count(tmp_path: Path) -> None:
    trained(tmp_path, "gradient_boosting", "ensemble.size=2", "ensemble.patience=null", "trainer.test=last")
    folder = tmp_path / "members" / "01-round"
    task = build(load_run(folder).cfg, folder, pretrained=False, trains=False).task
    assert isinstance(task, Residual)
    last = newest(tmp_path / "members" / "00-round")
    (network,) = task.networks
    assert all(value.equal(last[name]) for name, value in network.state_dict().items())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network to fine-tune."""
    place = tmp_path_factory.mktemp("tuning") / "base"
    Runner(compose([*BASE, "seed=7"]).cfg, place).run()
    return place


@pytest.mark.thorough(first=0)
def test_fine_tuned_members_share_one_base(base: Path, tmp_path: Path) -> None:
    tuned = ("finetune=lora", "finetune.lora.rank=2", f"finetune.weights.path={base}")
    run, result = trained(tmp_path, "voting", "ensemble.size=2", *tuned)
    before = newest(base)["layers.linear0.weight"]
    file = load_file(tmp_path / "ensemble.safetensors")
    assert [name for name, tensor in file.items() if tensor.equal(before)] == [
        "00/layers.linear0.parametrizations.weight.original"
    ]
    first, second = read_ensemble(tmp_path / "ensemble.safetensors").members
    own = [name for name, tensor in first.state.items() if not tensor.equal(second.state[name])]
    assert {name.partition(".")[0] for name in own} == {"head", "layers"}
    assert all("lora" in name for name in own if name.startswith("layers"))
    agrees(run, result, "test")


@pytest.mark.thorough
def test_what_learns_from_predictions_is_not_fine_tuned(base: Path, tmp_path: Path) -> None:
    tuned = ("finetune=lora", "finetune.lora.rank=2", f"finetune.weights.path={base}")
    kinds = "ensemble.members=[{finetune.lora.rank: 1}, {finetune.lora.rank: 3}]"
    run, result = trained(tmp_path, "stacking", *tuned, kinds, "ensemble.layers=2", "ensemble.holdout=0")
    tuned_layers = {path.name: load_run(path).cfg.finetune.lora.match for path in (tmp_path / "members").iterdir()}
    anew = {name for name in tuned_layers if "layer2" in name or "meta" in name}
    assert {name for name, match in tuned_layers.items() if not match} == anew
    agrees(run, result, "test")


TIED = [
    *["data=wine", "data.batch_size=32", "data.normalize=standard", "trainer.epochs=2", "device=cpu"],
    *["model={_target_: tests.ensemble.networks.Tied}", "metrics.figures=[]", "logger=quiet"],
    *["ensemble=voting", "ensemble.size=2", "trainer.ema.decay=0.9", "checkpoint.export=safetensors"],
]


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("engine", ["vectorized", pytest.param("sequential", marks=pytest.mark.thorough)])
def test_networks_with_shared_tensors_become_an_ensemble(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = Runner(compose([*TIED, f"ensemble.engine={engine}"]).cfg, folder).run()
    assert ("at once" in (folder / "members" / "00" / "run.log").read_text()) == (engine == "vectorized")
    values = Runner(load_run(folder).cfg, folder).evaluate("test")
    assert values == pytest.approx({name: result["metrics"][name] for name in values}, abs=1e-5)
    own = Runner(load_run(folder / "members" / "01").cfg, folder / "members" / "01").evaluate("test")
    assert own["test/loss"] == pytest.approx(result["members"]["01"]["test/loss"], abs=1e-5)
    state = content.load_model_state(next((folder / "members" / "00" / "checkpoints").glob("step-*.pt")))
    for one, other in (("encoder", "decoder"), ("block.0", "again.0")):
        assert torch.equal(state[f"{one}.weight"], state[f"{other}.weight"])
    assert torch.equal(state["scale"], state["same_scale"])
    ensemble = lightkit.load_ensemble(folder)
    assert ensemble.predict(torch.randn(3, 13)).shape == (3, 3)


def test_damaged_checkpoints_are_set_aside(tmp_path: Path) -> None:
    lines: list[str] = []
    train(tmp_path, "ensemble=voting", "ensemble.size=1")
    cfg, folder = compose([*QUICK, "ensemble=voting", "ensemble.size=1"]).cfg, tmp_path / "members" / "00"

    def result() -> dict[str, Any]:
        return find_trained(cfg, RunFolder(tmp_path), member(facts(), 0), lines.append)

    assert result()["status"] == "finished"
    whole = (folder / "oof.safetensors").read_bytes()
    (folder / "oof.safetensors").write_bytes(b"")
    assert result() == {}
    (folder / "oof.safetensors").write_bytes(whole)
    for path in (folder / "checkpoints").glob("*.pt"):
        path.write_bytes(b"")
    assert result() == {}
    start = "member 00 is damaged, and is made whole again alone: "
    assert lines[0].startswith(f"{start}oof.safetensors: ")
    assert lines[1].startswith(f"{start}step-")
    assert (folder / "checkpoints.damaged" / "manifest.json").is_file()
    assert not (folder / "checkpoints").exists()
