from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import Composed, compose, compose_jobs, load_run, run_hydra, save
from lightkit.config.member_values import member_label, member_values, with_values

THREE = "ensemble.members=[{model: mlp}, {model: cnn, optim.lr: 0.01}, {model: resnet18, finetune: lora, seed: 7}]"


@pytest.fixture(autouse=True)
def _here(project: Path) -> None:
    """In an empty project: groups and options are the shipped ones."""


def composed(*overrides: str) -> Composed:
    return compose(["ensemble=voting", *overrides])


def entries(made: Composed) -> list[Any]:
    found: Any = OmegaConf.to_container(made.cfg.ensemble.members)
    return found


def member(made: Composed, index: int) -> Any:
    return with_values(made.cfg, member_values(made.cfg.ensemble.members[index]))


def report(*overrides: str) -> str:
    with pytest.raises(UserErrors) as caught:
        composed(*overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_members_are_what_their_overrides_compose_to() -> None:
    made = composed(THREE, "optim.lr=0.1", "model.hidden=[64]")
    first, second, third = (member(made, index) for index in range(3))
    assert (first.model._target_, first.model.hidden, first.optim.lr) == ("lightkit.models.MLP", [64], 0.1)
    assert second.model == compose(["model=cnn"]).cfg.model  # without the width that was typed for another model
    assert (second.optim.lr, third.optim.lr) == (0.01, 0.1)
    plain = compose(["model=resnet18", "finetune=lora", "seed=7", "optim.lr=0.1"]).cfg
    for group in ("model", "loss", "optim", "scheduler", "finetune", "trainer", "data", "seed"):
        assert third[group] == plain[group]


def test_entries_are_written_out_by_what_differs() -> None:
    found = entries(composed(THREE))
    assert found[0] == {"name": "mlp"}
    assert found[1].keys() == {"name", "model", "optim.lr"}
    assert found[1]["model"]["_target_"] == "lightkit.models.CNN"
    assert found[2]["seed"] == 7
    assert [member_label(entry, index) for index, entry in enumerate(found)] == [
        "00-mlp",
        "01-cnn-lr=0.01",
        "02-resnet18-lora-seed=7",
    ]
    assert entries(composed("ensemble.members=[{seed: 0}, {name: mine, optim: {lr: 0.2}}, {}]")) == [
        {"name": "seed=0", "seed": 0},
        {"name": "mine", "optim.lr": 0.2},
        {},
    ]
    assert entries(composed()) == []


def test_values_carry_over_where_the_new_part_takes_them() -> None:
    made = composed("ensemble.members=[{optim: sgd}, {}]", "optim.lr=0.3", "optim.betas=[0.8,0.9]")
    first = member(made, 0).optim
    assert first._target_ == "torch.optim.SGD"
    assert first.lr == 0.3
    assert "betas" not in first


def test_a_member_may_be_an_experiment_over_the_same_data(project: Path) -> None:
    (project / "experiments").mkdir(exist_ok=True)
    text = "defaults:\n  - override /model: cnn\noptim:\n  lr: 0.5\nname: other\nlogger:\n  tensorboard: null\n"
    (project / "experiments/same.yaml").write_text(text)
    (project / "experiments/other.yaml").write_text("defaults:\n  - override /data: wine\n")
    made = composed("ensemble.members=[{experiment: same}, {}]")
    first = member(made, 0)
    assert (first.model._target_, first.optim.lr, first.name) == ("lightkit.models.CNN", 0.5, "same")
    assert first.logger == made.cfg.logger
    said = report("ensemble.members=[{experiment: other}, {}]")
    assert "ensemble.members.0.experiment: the members of an ensemble learn from the same data" in said
    assert "this option sets data." in said


def test_relations_between_keys_hold_for_members() -> None:
    assert "ensemble.members.1.trainer.epochs: training has no end" in report(
        "ensemble.members=[{}, {trainer.epochs: null, trainer.steps: null}]"
    )


@pytest.mark.parametrize(
    ("members", "message", "fix"),
    [
        ("[mlp, {}]", "ensemble.members.0: wrong type", "fix:      {model: mlp}"),
        ("[{}, null]", "ensemble.members.1: wrong type", "a mapping of keys and values"),
        ("[[1], {}]", "ensemble.members.0: wrong type", "a mapping of keys and values"),
        ("mlp", "ensemble.members: wrong type", "'ensemble.members=[{model: mlp}"),
        ("null", "ensemble.members: wrong type", "or [] for ensemble.size members"),
        ("{model: mlp}", "ensemble.members: wrong type", "expected: a list"),
        ("[{model: mlp}, {}, {}]", "ensemble.members: the members are all alike", "ensemble.size=3"),
        ("[{seed: 1}, {seed: 2}, {seed: 1}]", "ensemble.members.2: the same as member 0", "another seed"),
    ],
)
def test_lists_that_are_none(members: str, message: str, fix: str) -> None:
    said = report(f"ensemble.members={members}")
    assert message in said
    assert fix in said


def test_a_removal_of_nothing(project: Path) -> None:
    (project / "experiments").mkdir(exist_ok=True)
    (project / "experiments/e.yaml").write_text('ensemble:\n  members:\n    - {}\n    - "~optim.lrr": null\n')
    assert "ensemble.members.1.~lrr: there is nothing of that name to remove" in report("experiment=e")


def test_an_ensemble_without_members_says_so() -> None:
    with pytest.raises(UserErrors, match=r"ensemble\.members: one model has no members"):
        compose(["ensemble.members=[{model: cnn}, {}]"])


def test_a_saved_run_needs_no_files_of_options(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (project / "conf/model").mkdir(parents=True)
    option = project / "conf/model/own.yaml"
    option.write_text("# Mine.\n_target_: lightkit.models.MLP\nhidden: [3]\ndropout: ${extra.rate}\n")
    made = composed("ensemble.members=[{model: own, extra.rate: 0.5}, {model: cnn}]", "extra.rate=0.1")
    save(made.cfg, tmp_path)
    option.unlink()
    read = load_run(tmp_path)
    assert entries(read) == entries(made)
    assert member(read, 0).model == {"_target_": "lightkit.models.MLP", "hidden": [3], "dropout": 0.5}
    save(read.cfg, tmp_path)
    assert entries(load_run(tmp_path)) == entries(made)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Composed]:
    """`saved("trainer.epochs=9")`: a saved ensemble of three, read with overrides."""
    save(composed(THREE).cfg, tmp_path)
    return lambda *overrides: load_run(tmp_path, overrides)


def test_values_of_members_of_a_saved_run_can_be_changed(saved: Callable[..., Composed]) -> None:
    made = saved("ensemble.members.1.optim.lr=0.02", "ensemble.members.1.model.depth=2", "optim.lr=0.5")
    second = member(made, 1)
    assert (second.optim.lr, second.model.depth, member(made, 0).optim.lr) == (0.02, 2, 0.5)
    assert entries(made)[1]["name"] == "cnn-lr=0.01"  # which names its folder
    grown = saved(f"{THREE[:-1]}, {{model: mlp, seed: 3}}]")
    assert entries(grown)[:3] == entries(saved())
    assert member(grown, 3).seed == 3


def test_changes_of_a_saved_run_are_checked(saved: Callable[..., Composed]) -> None:
    with pytest.raises(UserErrors) as caught:
        saved("ensemble.members.1.optim.lr=-1", "ensemble.members.2.model.chanels=[3]")
    said = str(caught.value)
    assert (
        "ensemble.members.1.optim.lr: out of range\n    at:       command line: ensemble.members.1.optim.lr=-1" in said
    )
    assert "ensemble.members.2.model.chanels: lightkit.models.ResNet takes no such argument" in said
    with pytest.raises(UserErrors, match="an experiment is chosen when an ensemble begins"):
        saved("ensemble.members=[{experiment: wine}, {}]")
    with pytest.raises(UserErrors, match=r"members\.0\.model: no such option"):
        saved("ensemble.members=[{model: mlpp}, {}]")


@pytest.mark.parametrize("entry", ["model._target_: os.system", "model: {_target_: os.system}"])
def test_targets_of_members_are_restricted(tmp_path: Path, entry: str) -> None:
    save(composed("ensemble.members=[{seed: 1}, {seed: 2}]").cfg, tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("    seed: 2\n", f"    {entry}\n"))
    with pytest.raises(UserErrors, match="os.system is not among what may be built"):
        load_run(tmp_path)


@pytest.mark.parametrize("entry", ["model._target_: own.Net", "model: {_target_: own.Net}"])
def test_members_of_a_run_from_elsewhere_build_nothing_of_the_project(project: Path, entry: str) -> None:
    (project / "own.py").write_text("from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n")
    folder = project / "outputs/runs/other"
    folder.mkdir(parents=True)
    save(composed("ensemble.members=[{seed: 1}, {seed: 2}]").cfg, folder)
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("    seed: 2\n", f"    {entry}\n"))
    with pytest.raises(UserErrors, match="the run comes from elsewhere"):
        load_run(folder)


def test_sweeps_take_lists_of_members() -> None:
    jobs = compose_jobs(["ensemble=voting", "ensemble.members=[{model: cnn},{}],[{optim: sgd},{}]"])
    assert [entries(job)[0]["name"] for job in jobs] == ["cnn", "sgd"]
    with pytest.raises(UserError, match=r"ensemble\.members: unlike members need the plain sweep"):
        run_hydra(["ensemble=voting", "ensemble.members=[{model: cnn},{}]"], lambda cfg: None)


def test_a_meta_model_is_composed_like_a_member() -> None:
    made = compose(["ensemble=stacking", "optim.lr=0.5", "ensemble.members=[{model.hidden: [4]}, {seed: 3}]"])
    assert len(entries(made)) == 2
    meta = with_values(made.cfg, member_values(made.cfg.ensemble.meta))
    assert (meta.model.hidden, meta.optim._target_, meta.trainer.steps) == ([], "torch.optim.Adam", 1000)
    assert "weight_decay" not in meta.optim
    other = compose(["ensemble=stacking", "ensemble.meta={model: soft_tree, optim: sgd, trainer.steps: 7}"])
    meta = with_values(other.cfg, member_values(other.cfg.ensemble.meta))
    assert meta.model == compose(["model=soft_tree"]).cfg.model
    assert (meta.optim._target_, meta.trainer.steps) == ("torch.optim.SGD", 7)


def test_a_mistake_in_the_meta_model_names_its_key(tmp_path: Path) -> None:
    with pytest.raises(UserErrors, match=r"ensemble\.meta\.optim\.lrr"):
        compose(["ensemble=stacking", "++ensemble.meta.optim.lrr=1"])
    with pytest.raises(UserErrors, match=r"ensemble\.meta\.data\.batch_size: the members of an ensemble learn from"):
        compose(["ensemble=stacking", "++ensemble.meta.data.batch_size=7"])
    made = compose(["ensemble=stacking", "ensemble.meta.model.hidden=[5]"])
    save(made.cfg, tmp_path)
    assert load_run(tmp_path).cfg.ensemble.meta == made.cfg.ensemble.meta
