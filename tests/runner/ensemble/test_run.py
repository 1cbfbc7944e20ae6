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
from lightkit.assembly import build_shared
from lightkit.assembly.member import own_task
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.ensemble.file import read_ensemble
from lightkit.ensemble.methods import Combination, RunFacts, Voting
from lightkit.ensemble.methods.base import member
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.tasks import Residual
from lightkit.runner import Runner
from lightkit.runner.ensemble.trained import find_trained, member_config
from lightkit.runs.folder import RunFolder
from lightkit.trainer.tasks import Supervised
from tests.ensemble.methods.running import QUICK, facts, train
from tests.resume.ensembles import BASE, config


def trained(place: Path, method: str, *more: str) -> tuple[Runner, dict[str, Any]]:
    """Train an ensemble; return it and the content of `result.json`."""
    run = Runner(config(method, *more), place)
    run.run()
    found: dict[str, Any] = json.loads((place / "result.json").read_text())
    return run, found


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


def test_the_plan_and_the_result_are_recorded(tmp_path: Path) -> None:
    _, result = trained(tmp_path, "voting", "ensemble.size=2", "ensemble.weights=uniform")
    plan = json.loads((tmp_path / "ensemble.json").read_text())
    assert plan["method"] == "Voting"
    assert plan["settings"]["size"] == 2
    assert [row["name"] for row in plan["members"]] == ["00", "01"]
    for row in plan["members"]:
        assert (row["status"], row["folder"], row["depends_on"]) == ("finished", f"members/{row['name']}", [])
        assert (row["rows"], row["epochs"], row["weight"]) == ("all", 2, 0.5)
    assert (result["status"], result["method"], result["rule"]) == ("finished", "Voting", "soft")
    assert result["objective"]["value"] == result["metrics"][result["objective"]["name"]]
    assert result["weights"] == {"00": 0.5, "01": 0.5}
    assert result["members"].keys() == {"00", "01"}
    assert result["best_member"] in result["members"]
    assert result["cost"]["networks"] == 2
    assert result["cost"]["epochs"] == 4
    for name in ("00", "01"):
        assert json.loads((tmp_path / "members" / name / "result.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    "how",
    [
        ("ensemble.weights=uniform",),
        ("ensemble.weights=uniform", "ensemble.vote=hard", "ensemble.size=5"),
        pytest.param(("ensemble.weights=validation",), marks=pytest.mark.thorough),
    ],
    ids=["soft", "hard", "weighted"],
)
def test_evaluation_says_what_the_result_says(how: tuple[str, ...], tmp_path: Path) -> None:
    run, result = trained(tmp_path, "voting", *how)
    for values in run.evaluate_splits(["val", "test"]).values():
        if "ensemble.vote=hard" in how:  # many shares are equal, and which of them a softmax rounds up is open
            values = {name: value for name, value in values.items() if not name.endswith("auroc")}
        assert values == pytest.approx({name: result["metrics"][name] for name in values}, rel=1e-4, abs=1e-5)


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
        assert torch.allclose(
            predicted.predictions, torch.tensor([rows[int(row)] for row in predicted.rows]), atol=1e-4
        )
    values = run.evaluate("test")
    assert values == pytest.approx({name: result["metrics"][name] for name in values}, rel=1e-4, abs=1e-5)


def test_rounds_learn_from_the_weights_that_count(tmp_path: Path) -> None:
    trained(tmp_path, "gradient_boosting", "ensemble.size=2", "ensemble.patience=null", "trainer.test=last")
    folder = tmp_path / "members" / "01-round"
    cfg = load_run(folder).cfg
    shared = build_shared(cfg, folder)
    task = own_task(cfg, Supervised(), shared.data.info, shared.engine, folder)
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
    values = run.evaluate("test")
    assert values == pytest.approx({name: result["metrics"][name] for name in values}, rel=1e-4, abs=1e-5)


@pytest.mark.thorough
def test_what_learns_from_predictions_is_not_fine_tuned(base: Path, tmp_path: Path) -> None:
    tuned = ("finetune=lora", "finetune.lora.rank=2", f"finetune.weights.path={base}")
    kinds = "ensemble.members=[{finetune.lora.rank: 1}, {finetune.lora.rank: 3}]"
    run, result = trained(tmp_path, "stacking", *tuned, kinds, "ensemble.layers=2", "ensemble.holdout=0")
    found = {path.name: load_run(path).cfg.finetune.lora.match for path in (tmp_path / "members").iterdir()}
    assert {name for name, match in found.items() if not match} == {
        name for name in found if "layer2" in name or "meta" in name
    }
    values = run.evaluate("test")
    assert values == pytest.approx({name: result["metrics"][name] for name in values}, rel=1e-4, abs=1e-5)


OPTIONS = [
    *["data=wine", "data.batch_size=32", "data.normalize=standard", "trainer.epochs=2", "device=cpu"],
    *["model={_target_: tests.ensemble.networks.Tied}", "metrics.figures=[]", "logger=quiet"],
    *["ensemble=voting", "ensemble.size=2"],
]


def run(folder: Path, *options: str, resume: bool = False) -> dict[str, Any]:
    return Runner(compose([*OPTIONS, *options]).cfg, folder).run(resume=resume)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_networks_with_shared_tensors_become_an_ensemble(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run(folder, f"ensemble.engine={engine}", "trainer.ema.decay=0.9", "checkpoint.export=safetensors")
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
    told: list[str] = []
    train(tmp_path, "ensemble=voting", "ensemble.size=1")
    cfg = compose([*QUICK, "ensemble=voting", "ensemble.size=1"]).cfg
    found = find_trained(cfg, RunFolder(tmp_path), member(facts(), 0), told.append)
    assert found["status"] == "finished"
    for path in (tmp_path / "members" / "00" / "checkpoints").glob("*.pt"):
        path.write_bytes(b"")
    assert find_trained(cfg, RunFolder(tmp_path), member(facts(), 0), told.append) == {}
    assert told[0].startswith("member 00 is damaged, and is made whole again alone: step-")
    assert (tmp_path / "members" / "00" / "checkpoints.damaged" / "manifest.json").is_file()
    assert not (tmp_path / "members" / "00" / "checkpoints").exists()
    (tmp_path / "members" / "00" / "oof.safetensors").write_bytes(b"")
    Runner(cfg, tmp_path).run(resume=True)
    assert "member 00 is damaged, and is made whole again alone" in (tmp_path / "run.log").read_text(encoding="utf-8")


def test_members_learn_from_the_data_of_the_run() -> None:
    with pytest.raises(UserError, match=r"data\.batch_size: the members of a run learn from the same data"):
        member_config(compose(QUICK).cfg, member(facts(), 0, values={"data.batch_size": 4}))
