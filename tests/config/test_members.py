from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import UnsupportedValueType

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import Composed, compose, compose_jobs, load_run, run_hydra, save
from lightkit.config.member_values import apply, difference, flat, member_label, member_values, with_values

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


def test_entries_are_written_out_by_what_differs(three: Composed) -> None:
    found = entries(three)
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


LISTS = """
[mlp, {}] ; ensemble.members.0: wrong type ; fix:      {model: mlp}
[{}, null] ; ensemble.members.1: wrong type ; a mapping of keys and values
mlp ; ensemble.members: wrong type ; 'ensemble.members=[{model: mlp}
null ; ensemble.members: wrong type ; or [] for ensemble.size members
{model: mlp} ; ensemble.members: wrong type ; expected: a list
[{model: mlp}, {}, {}] ; ensemble.members: the members are all alike ; ensemble.size=3
[{seed: 1}, {seed: 2}, {seed: 1}] ; ensemble.members.2: the same as member 0 ; another seed
"""


def test_lists_that_are_none() -> None:
    for line in LISTS.strip().splitlines():
        members, *parts = line.split(" ; ")
        text = report(f"ensemble.members={members}")
        assert all(part in text for part in parts), text
    with pytest.raises(UserErrors, match=r"ensemble\.members: one model has no members"):
        compose(["ensemble.members=[{model: cnn}, {}]"])


def test_a_removal_of_nothing(project: Path) -> None:
    (project / "experiments").mkdir(exist_ok=True)
    (project / "experiments/e.yaml").write_text('ensemble:\n  members:\n    - {}\n    - "~optim.lrr": null\n')
    assert "ensemble.members.1.~lrr: there is nothing of that name to remove" in report("experiment=e")


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


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Composed:
    """An ensemble of three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("three"))
        return composed(THREE)


@pytest.fixture
def saved(three: Composed, tmp_path: Path) -> Callable[..., Composed]:
    """`saved("trainer.epochs=9")`: the saved ensemble of three, read with overrides."""
    save(three.cfg, tmp_path)
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


@pytest.mark.parametrize("entry", ["model._target_: TARGET", "model: {_target_: TARGET}"])
def test_targets_of_members_are_restricted_and_of_a_run_from_elsewhere_even_more(project: Path, entry: str) -> None:
    (project / "own.py").write_text("from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n")
    folder = project / "outputs/runs/other"
    folder.mkdir(parents=True)
    text = save(composed("ensemble.members=[{seed: 1}, {seed: 2}]").cfg, folder).read_text()
    for target, what in (("os.system", "os.system is not among what may"), ("own.Net", "the run comes from elsewhere")):
        changed = text.replace("    seed: 2\n", f"    {entry.replace('TARGET', target)}\n")
        (folder / "config.yaml").write_text(changed)
        with pytest.raises(UserErrors, match=what):
            load_run(folder)


def test_sweeps_take_lists_of_members() -> None:
    jobs = compose_jobs(["ensemble=voting", "ensemble.members=[{model: cnn},{}],[{optim: sgd},{}]"])
    assert [entries(job)[0]["name"] for job in jobs] == ["cnn", "sgd"]
    with pytest.raises(UserError, match=r"ensemble\.members: unlike members need the plain sweep"):
        run_hydra(["ensemble=voting", "ensemble.members=[{model: cnn},{}]"], lambda cfg: None)


def test_values_from_python_may_be_others_than_those_of_a_file() -> None:
    made = composed("ensemble.size=2")
    own = with_values(made.cfg, {"optim.betas": (0.5, 0.9), "model.hidden": [7]})
    assert (own.optim.betas, own.model.hidden) == ([0.5, 0.9], [7])
    assert own == with_values(own, {})
    assert OmegaConf.is_readonly(own.optim)
    assert made.cfg.model.hidden != [7]
    with pytest.raises(UnsupportedValueType):
        with_values(made.cfg, {"optim.betas": object()})


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


EXPERIMENT = """\
defaults:
  - override /scheduler: torch
scheduler:
  scheduler:
    _target_: torch.optim.lr_scheduler.{target}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("target", "arguments"),
    [("CosineAnnealingLR", "    T_max: 3\n")],
)
def test_a_schedule_in_a_file_gets_no_argument_of_the_shipped_one(
    target: str, arguments: str, project: Path, cli: Callable[..., Any]
) -> None:
    (project / "experiments" / "mine.yaml").write_text(EXPERIMENT.format(target=target) + arguments)
    short = ("trainer.steps=2", "trainer.test=none", "logger=quiet", "metrics.figures=[]")
    done = cli("train", "experiment=mine", "data=wine", *short)
    assert done.code == 0, done.err


def test_what_the_user_sets_stays_and_is_judged(project: Path) -> None:
    path = project / "experiments" / "mine.yaml"
    path.write_text(EXPERIMENT.format(target="CosineAnnealingLR") + "    T_max: 3\n    gamma: 2\n")
    with pytest.raises(
        UserErrors, match=r"scheduler\.scheduler\.gamma: .* takes no such argument\n +at: +.*mine.yaml:7"
    ):
        compose(["experiment=mine"])
    with pytest.raises(UserErrors, match=r"optim\.betas: torch\.optim\.SGD takes no such argument"):
        compose(["optim._target_=torch.optim.SGD", "optim.betas=[0.9,0.99]"])


def test_every_group_lets_go_of_the_arguments_of_its_default() -> None:
    typed = ["optim._target_=torch.optim.SGD", "loss._target_=torch.nn.MultiMarginLoss"]
    cfg = compose([*typed, "model._target_=torch.nn.Flatten", "data.dataset._target_=lightkit.data.tables.wine"]).cfg
    assert {"lr", "weight_decay", "rules"} <= set(cfg.optim)
    for node, gone in ((cfg.optim, "betas"), (cfg.loss, "label_smoothing"), (cfg.model, "hidden")):
        assert gone not in node
    assert "image" not in cfg.data.dataset


def test_a_mistake_in_an_option_file_of_ones_own_is_no_left_over(project: Path) -> None:
    folder = project / "conf" / "optim"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults:\n  - adamw\n_target_: torch.optim.SGD\nmomentumm: 0.9\n")
    with pytest.raises(UserErrors, match=r"optim\.momentumm: .*\n(.*\n)*.*did you mean optim\.momentum"):
        compose(["optim=mine"])


def test_what_a_mapping_on_the_command_line_says_itself_is_judged() -> None:
    with pytest.raises(UserErrors, match=r"optim\.betas: torch\.optim\.SGD takes no such argument\n +at: +command"):
        compose(["optim={_target_: torch.optim.SGD, betas: [0.9, 0.99]}"])


def test_mistakes_of_all_members_come_in_one_report_with_their_keys() -> None:
    said = report(
        "ensemble.members=[{}, {model: cnnn}, {optim.lr: -1}, {model: cnn, model.depht: 2}, {modle: cnn},"
        "{trainer.epochs: null}]"
    )
    assert "ensemble.members.5.trainer.epochs: training has no end" in said
    assert "ensemble.members.1.model: no such option" in said
    assert "fix:      model=cnn\n" in said
    assert "ensemble.members.2.optim.lr: out of range" in said
    assert "ensemble.members.3.model.depht: lightkit.models.CNN takes no such argument" in said
    assert "did you mean ensemble.members.3.model.depth?" in said
    assert "ensemble.members.4.modle: unknown key" in said
    assert "at:       command line: ensemble.members=[…]" in said
    assert "5 problems found" in said


def test_a_mistake_of_the_run_is_told_once() -> None:
    said = report("ensemble.members=[{seed: 1}, {seed: 2}]", "optim.lrr=1")
    assert "1 problem found" in said
    assert "\nensemble.members" not in said


def test_a_mistake_in_a_file_is_told_with_its_line(project: Path) -> None:
    (project / "conf/model").mkdir(parents=True)
    (project / "conf/model/own.yaml").write_text("# Mine.\n_target_: lightkit.models.MLP\nhiden: [3]\n")
    assert "at:       conf/model/own.yaml:3" in report("ensemble.members=[{model: own}, {}]")
    (project / "experiments").mkdir(exist_ok=True)
    text = "ensemble:\n  members:\n    - model: mlp\n    - model: cnn\n      optim.lr: -1\n"
    (project / "experiments/e.yaml").write_text(text)
    said = report("experiment=e")
    assert "ensemble.members.1.optim.lr: out of range" in said
    assert "at:       experiments/e.yaml:5" in said


NOT_OWN = """
{data.batch_size: 3} ; data.batch_size: the members of an ensemble learn from the same ; lightkit ensemble
{data: wine} ; data: the members of an ensemble learn from the same data ; RUN1 RUN2
{device.name: cpu} ; device.name: the device is that of the whole run ; set device.name beside
{metrics: {monitor: val/loss}} ; metrics.monitor: all members are measured alike ; set metrics.monitor
{ensemble: voting} ; ensemble: a member is a single model ; take it out
{finetune.weights.trust: true} ; finetune.weights.trust: trust is granted to the whole ; set finetune
{trust: [os]} ; trust: trust is granted to the whole run ; set trust
{+optim.lr: 0.1} ; +optim.lr: no key of a member ; fix:      optim.lr: 0.1
{hydra/launcher: joblib} ; hydra/launcher: no key of a member ; a key such as optim.lr
{hydra.run.dir: x} ; hydra.run.dir: Hydra's own settings are those of the whole run ; set hydra.run.dir
{model: null} ; model: wrong type ; received: 'null'
"""


def test_what_a_member_cannot_say() -> None:
    rows = [line.split(" ; ") for line in NOT_OWN.strip().splitlines()]
    parts = report(f"ensemble.members=[{','.join(entry for entry, _, _ in rows)}]").split("\n\n")
    for index, (text, (_, message, fix)) in enumerate(zip(parts, rows)):
        assert text.startswith(f"ensemble.members.{index}.{message}")
        assert fix in text
    assert parts[-1] == "11 problems found"


RUN = {
    "model": {"_target_": "a.MLP", "hidden": [8], "act": "relu"},
    "optim": {"_target_": "a.SGD", "lr": 0.1},
    "finetune": {"freeze": ["*"], "lora": {"rank": 8, "ranks": {"layer4.*": 16}}, "peft": None},
    "trainer": {"epochs": 3, "callbacks": {"swa": {"_target_": "a.Swa", "start": 2}}},
    "seed": 0,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 7, "optim.lr": 0.01},
        {"model": {"_target_": "a.CNN", "channels": [4]}},
        {"model": {"_target_": "a.MLP", "hidden": [8]}},
        {"finetune.peft": {"_target_": "a.Peft", "r": 8}},
        {"finetune": {"lora": {"ranks": {"layer3.*": 4}}}},
        {"~finetune.lora.ranks": None, "finetune.lora.ranks": {"layer3.*": 4}},
        {"~trainer.callbacks.swa": None},
        {"trainer": {"callbacks": {"hook": {"_target_": "a.Hook"}}}},
    ],
)
def test_what_tells_two_configurations_apart_makes_one_of_the_other(changes: dict[str, Any]) -> None:
    wanted = OmegaConf.to_container(with_values(OmegaConf.create(RUN), changes))
    found = difference(RUN, wanted)
    again = with_values(OmegaConf.create(RUN), found)
    assert OmegaConf.to_container(again) == wanted
    assert difference(RUN, OmegaConf.to_container(again)) == found == member_values(found)


def test_a_whole_node_replaces_and_any_other_mapping_is_merged() -> None:
    cfg = with_values(
        OmegaConf.create(RUN), {"model": {"_target_": "a.CNN", "width": 3}, "finetune": {"lora": {"rank": 2}}}
    )
    assert cfg.model == {"_target_": "a.CNN", "width": 3}
    assert cfg.finetune == {"freeze": ["*"], "lora": {"rank": 2, "ranks": {"layer4.*": 16}}, "peft": None}
    assert OmegaConf.is_readonly(cfg)
    assert RUN["optim"] == cfg.optim


def test_the_order_of_an_entry_counts_only_between_two_that_say_the_same() -> None:
    assert member_values({"optim.lr": 0.1, "optim": {"lr": 0.2}}) == {"optim.lr": 0.2}
    tree: dict[str, Any] = {"model": {"_target_": "a.MLP", "hidden": [1]}}
    apply(tree, flat({"model.width": 5, "model": {"_target_": "a.CNN", "width": 3}}))
    assert tree == {"model": {"_target_": "a.CNN", "width": 5}}


LABELS: list[tuple[dict[str, Any], str]] = [
    ({}, "02"),
    ({"name": "cnn-lr=0.01", "seed": 3}, "02-cnn-lr=0.01"),
    ({"model": {"_target_": "lightkit.models.CNN", "depth": 2}, "optim.lr": 0.01}, "02-cnn-lr=0.01"),
    ({"model.hidden": [64, 64], "finetune.peft": None}, "02-hidden=64,64"),
    ({"name": "../a b"}, "02-a-b"),
    ({"name": "x" * 99}, "02-" + "x" * 37),
]


def test_labels_are_short_and_safe_names_of_folders() -> None:
    assert [member_label(entry, 2) for entry, _ in LABELS] == [label for _, label in LABELS]


def test_a_mapping_on_the_command_line_gets_no_argument_of_the_shipped_target() -> None:
    node = "{_target_: torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.1, total_steps: 100}"
    optim = "optim={_target_: torch.optim.SGD, momentum: 0.9}"
    cfg = compose(["scheduler=torch", f"scheduler.scheduler={node}", optim]).cfg
    assert "gamma" not in cfg.scheduler.scheduler
    assert cfg.scheduler.scheduler._partial_ is True
    assert "betas" not in cfg.optim
