from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightkit.checkpoint.store import CheckpointStore
from tests.checkpoint.test_weights import gathered
from tests.conftest import Cli
from tests.detached.made import going_on


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three checkpoints of a configured model; the second is the best."""
    from lightkit.assembly import build_model
    from lightkit.config import compose, load_run, save, to_yaml
    from lightkit.data import DataInfo
    from lightkit.device import Engine

    folder = tmp_path_factory.mktemp("stored") / "run"
    folder.mkdir()
    cfg = compose(["data=wine", "model=mlp", "model.hidden=[4]", "model.norm=none", "device=cpu"]).cfg
    save(cfg, folder)
    info = DataInfo("multiclass", (13,), 3, ("a", "b", "c"), fingerprint="x")
    store = CheckpointStore(folder / "checkpoints", keep_last=3, mode="max")
    for step, value in [(10, 0.5), (20, 0.9), (30, 0.7)]:
        model = build_model(load_run(folder, [f"seed={step}"]).cfg, info, Engine("cpu", seed=step))
        store.save(gathered(model) | {"config": to_yaml(cfg)}, step=step, value=value, epoch=step // 10)
    return folder


@pytest.fixture
def run(stored: Path, project: Path) -> Path:
    return Path(shutil.copytree(stored, project / "outputs" / "runs" / "2026-01-31" / "12-00-00-run"))


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-000000{step}.pt"


def test_inspect_lists_the_checkpoints_of_a_run_and_ends_with_5_where_one_is_damaged(cli: Cli, run: Path) -> None:
    plain, long = cli("ckpt", "inspect", str(run)), cli("ckpt", "inspect", str(run), "--tensors")
    assert (plain.code, long.code) == (0, 0)
    more = long.out.removeprefix(plain.out)  # of the newest one
    assert more.startswith("\nstep-00000030.pt\n")
    assert "tensor " in more
    os.truncate(checkpoint(run, 10), 99)
    done = cli("ckpt", "inspect", "last")
    assert (done.code, "step-00000010.pt cannot be read" in done.err) == (5, True)
    rows = [line.split() for line in done.out.splitlines()[2:]]
    assert rows[0] == ["file", "step", "epoch", "value", "size", "state", "mark"]
    assert rows[1][:4] == ["step-00000010.pt", "10", "1", "0.5000"]
    assert "damaged:" in rows[1]
    assert (rows[2][-2:], rows[3][-2:]) == (["whole", "best"], ["whole", "newest"])
    (run / "checkpoints" / "manifest.json").write_text("{")
    unlisted = cli("ckpt", "inspect", "last")
    assert (unlisted.code, "manifest.json is damaged" in unlisted.err) == (5, True)
    assert [line.split()[0] for line in unlisted.out.splitlines()[3:]] == ["step-00000020.pt", "step-00000030.pt"]
    for path in (run / "checkpoints").glob("*.pt"):
        path.write_bytes(b"")
    assert cli("ckpt", "inspect", "last").code == 5


def test_inspect_says_what_is_in_a_file_and_of_a_damaged_one_what_the_manifest_knows(cli: Cli, run: Path) -> None:
    path = checkpoint(run, 20)
    done = cli("ckpt", "inspect", str(path))
    assert done.code == 0, done.err
    assert "lightkit checkpoint, weights in model" in done.out
    assert "model._target_         lightkit.models.MLP" in done.out
    assert "layers.linear0.weight  4×13" in done.out
    os.truncate(path, 99)
    damaged = cli("ckpt", "inspect", str(path))
    assert (damaged.code, "99 bytes instead of" in damaged.err) == (5, True)
    assert "step 20, epoch 2, value 0.9" in damaged.out


def test_inspect_shortens_long_lists(cli: Cli, project: Path) -> None:
    torch.save({f"w{i}": torch.ones(1) for i in range(20)}, project / "x.pt")
    assert "... and 10 more: --tensors names them all" in cli("ckpt", "inspect", "x.pt").out
    assert "w19 " in cli("ckpt", "inspect", "x.pt", "--tensors").out


@pytest.mark.parametrize("damage", ["flipped", pytest.param("cut off", marks=pytest.mark.thorough)])
def test_no_action_takes_a_damaged_best_checkpoint(cli: Cli, run: Path, project: Path, damage: str) -> None:
    path = checkpoint(run, 20)
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    else:
        del content[len(content) // 3 :]
    path.write_bytes(content)
    actions = (
        ["inspect", "last"], ["inspect", str(path)], ["convert", "last", "x.pt"], ["merge", "last", "x.pt"],
        ["convert", "last", "x.pt", "--to", "state"], ["convert", "last", "x.pt", "--to", "model"],
        ["average", "last", "last", "x.pt"], ["diff", "last", "last"], ["diff", "last", "last", "--all"],
        ["prune", "last"], ["prune", "last", "--keep-last", "9", "--dry-run"],
    )  # fmt: skip
    assert {" ".join(args): cli("ckpt", *args).code for args in actions} == {" ".join(args): 5 for args in actions}
    assert not (project / "x.pt").exists()


def test_convert_takes_the_best_and_the_name_says_the_kind(cli: Cli, run: Path, project: Path) -> None:
    done = cli("ckpt", "convert", "last", "x.safetensors")
    assert "step-00000020.pt (model) written to x.safetensors" in done.out
    names = ["head.bias", "head.weight", "layers.linear0.bias", "layers.linear0.weight"]
    assert sorted(load_file(project / "x.safetensors")) == names
    assert cli("ckpt", "convert", "x.safetensors", "x.pt").code == 0
    assert sorted(torch.load(project / "x.pt", weights_only=True)) == names
    assert cli("ckpt", "diff", "x.pt", "last").code == 0
    assert cli("ckpt", "convert", "last", "x.pt", "--overwrite").code == 0
    assert cli("ckpt", "convert", "last", "state.pt", "--to", "state").code == 0
    assert cli("ckpt", "diff", "state.pt", "last", "--all").code == 0


def test_a_whole_model_is_built_from_the_run(cli: Cli, run: Path, project: Path) -> None:
    done = cli("ckpt", "convert", "last", "model.pt", "--to", "model")
    assert done.code == 0, done.err
    refused = cli("ckpt", "inspect", "model.pt")
    assert (refused.code, "run code when they are opened" in refused.err) == (5, True)
    assert "whole model" in cli("ckpt", "inspect", "model.pt", "--trust").out
    assert cli("ckpt", "diff", "model.pt", "last", "--trust").code == 0
    alone = cli("ckpt", "convert", "model.pt", "other.pt", "--to", "model", "--trust")
    assert (alone.code, "in the folder of its run only" in alone.err) == (2, True)


def test_diff_names_what_differs(cli: Cli, run: Path) -> None:
    first, second = str(checkpoint(run, 10)), str(checkpoint(run, 20))
    done = cli("ckpt", "diff", first, second)
    assert (done.code, done.err) == (1, "")
    assert "layers.linear0.weight  values      4×13 float32" in done.out
    assert done.out.splitlines()[-1] == "4 differ, 0 are the same to the last bit"
    same = cli("ckpt", "diff", first, first)
    assert (same.code, same.out) == (0, "0 differ, 4 are the same to the last bit\n")
    different = cli("ckpt", "diff", first, second, "--json")
    assert different.code == 1
    assert {"name", "what", "first", "second", "largest", "count"} <= {*json.loads(different.out)[0]}
    assert json.loads(cli("ckpt", "diff", first, first, "--json").out) == []


def test_prune_deletes_by_the_manifest(cli: Cli, run: Path) -> None:
    (run / "checkpoints" / "step-00000005.pt").write_text("mine")
    dry = cli("ckpt", "prune", "last", "--dry-run")
    assert (dry.code, "would delete  step-00000010.pt" in dry.out) == (0, True)
    assert len(list((run / "checkpoints").glob("*.pt"))) == 4
    done = cli("ckpt", "prune", "last")
    assert "deleted  step-00000010.pt" in done.out
    assert "freed; step-00000020.pt, step-00000030.pt stay" in done.out
    left = [f"step-000000{step}.pt" for step in ("05", "20", "30")]
    assert sorted(path.name for path in (run / "checkpoints").glob("*.pt")) == left
    assert cli("ckpt", "prune", "last", "--keep-best", "0").code == 0
    entries = json.loads((run / "checkpoints" / "manifest.json").read_text())["entries"]
    assert [entry["step"] for entry in entries] == [30]


def test_prune_leaves_a_running_run_alone(cli: Cli, run: Path) -> None:
    with going_on(run):
        done = cli("ckpt", "prune", "last")
        assert (done.code, "is running in this folder" in done.err) == (75, True)
        assert cli("ckpt", "prune", "last", "--dry-run").code == 0
    assert len(list((run / "checkpoints").glob("*.pt"))) == 3


def test_diff_leaves_out_what_the_machine_was_like(cli: Cli, run: Path) -> None:
    content = CheckpointStore(run / "checkpoints").load_newest()[1]
    for name, speed in (("a", 10.0), ("b", 20.0)):
        last = {"speed/samples_per_second": speed, "val/loss": 0.5}
        CheckpointStore(Path(name)).save({**content, "state": {"last": last}}, step=1, value=None, epoch=0)
    done = cli("ckpt", "diff", "a", "b", "--all")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("0 differ, ")
    assert "; 1 that tell of the machine's speed are left out" in done.out


@pytest.fixture
def voting(run: Path) -> Path:
    """The folder of a run of two networks, which the model of the other run was."""
    from lightkit.checkpoint import content
    from lightkit.checkpoint.store import CheckpointStore
    from lightkit.ensemble.file import StoredEnsemble, StoredMember, write_ensemble

    folder, config = run.parent / "vote", (run / "config.yaml").read_text()
    folder.mkdir()
    (folder / "config.yaml").write_text(config)
    best = CheckpointStore(run / "checkpoints", mode="max").best()
    assert best is not None
    state = content.load_model_state(best)
    members = [StoredMember(name, config, weight, state) for name, weight in (("00", 0.25), ("01-mlp", 0.75))]
    write_ensemble(folder / "ensemble.safetensors", StoredEnsemble(members, "soft", "multiclass", ("a", "b", "c")))
    return folder


def test_inspect_lists_the_members_of_an_ensemble(cli: Cli, voting: Path) -> None:
    for given in (voting, voting / "ensemble.safetensors"):
        done = cli("ckpt", "inspect", str(given))
        assert "ensemble of 2 for multiclass" in done.out
        assert ["01-mlp", "0.7500"] in [line.split()[:2] for line in done.out.splitlines()]
        assert "00/" not in done.out
    assert "00/head.weight" in cli("ckpt", "inspect", str(voting), "--tensors").out


def test_an_ensemble_is_converted_as_a_whole(cli: Cli, voting: Path) -> None:
    done = cli("ckpt", "convert", str(voting), "vote.pt", "--to", "model")
    assert (done.code, "2 networks" in done.out) == (0, True), done.err
    model = torch.load("vote.pt", weights_only=False)
    assert (len(model), model.weights.tolist()) == (2, [0.25, 0.75])
    for name in ("vote.safetensors", "state.pt"):
        assert cli("ckpt", "convert", str(voting), name).code == 0
    assert cli("ckpt", "diff", "vote.safetensors", "state.pt").code == 0
    assert torch.load("state.pt").keys() == model.state_dict().keys()
    for words, message in {
        "convert RUN x.pt --to state": "has no state to go on from",
        "merge RUN x.pt": "this is the run of an ensemble",
        "average RUN RUN x.pt": "this is the run of an ensemble",
        "diff RUN RUN": "this is the run of an ensemble",
        "prune RUN": "not the folder of a run with checkpoints",
    }.items():
        refused = cli("ckpt", *words.replace("RUN", str(voting)).split())
        assert (refused.code, message in refused.err) == (2, True), refused.err


def test_what_is_inspected_as_json(cli: Cli, run: Path, voting: Path) -> None:
    listed = json.loads(cli("ckpt", "inspect", str(run), "--json").out)["checkpoints"]
    assert [(row["step"], row["state"]) for row in listed] == [(step, "whole") for step in (10, 20, 30)]
    file = json.loads(cli("ckpt", "inspect", str(checkpoint(run, 20)), "--json").out)
    assert file["kind"].startswith("lightkit checkpoint")
    assert ("4×13", "float32") in [(row["shape"], row["type"]) for row in file["tensors"]]
    members = json.loads(cli("ckpt", "inspect", str(voting), "--json").out)["members"]
    assert [each["name"] for each in members] == ["00", "01-mlp"]
