from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.patterns import Pattern
from lightkit.config import compose, load_run, save
from lightkit.config.saved import as_meant, from_yaml
from lightkit.config.tree import MARK


@pytest.fixture
def folder(toy: Path) -> Path:
    """The folder of a run of the toy project."""
    path = toy / "outputs" / "run"
    path.mkdir(parents=True)
    return path


def test_a_saved_configuration_comes_back(folder: Path) -> None:
    made = compose(["optim=adam", "seed=${extra.s}", "extra.s=3", "optim.rules=[{match: a}]"])
    path = save(made.cfg, folder)
    loaded = load_run(folder)
    assert path == folder / "config.yaml"
    assert OmegaConf.to_container(loaded.cfg) == OmegaConf.to_container(made.cfg, resolve=True)
    assert OmegaConf.is_readonly(loaded.cfg)
    assert [item.name for item in folder.iterdir() if "config.yaml" in item.name] == ["config.yaml"]


def test_secrets_stay_in_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setenv("SEED", "4")
    typed = ["extra.token=${oc.env:TOKEN}", "extra.url='http://${extra.token}@host'", "extra.again=${.token}"]
    typed += ["extra.list=[1,'${extra.url}']", "extra.deep={a: '${extra.list}'}", "extra.plain=${name}"]
    made = compose([*typed, "seed='${oc.decode:${oc.env:SEED}}'"])
    text = save(made.cfg, folder).read_text()
    assert "s3cret" not in text
    assert "plain: toy" in text
    loaded = load_run(folder).cfg
    assert loaded.extra.url == "http://s3cret@host"
    assert loaded.extra.deep.a[1] == "http://s3cret@host"
    assert loaded.seed == 4


def test_values_can_be_changed_and_are_checked(folder: Path) -> None:
    save(compose([]).cfg, folder)
    made = load_run(folder, ["trainer.epochs=99", "optim.nesterov=true", "~data.augment"])
    assert (made.cfg.trainer.epochs, made.cfg.optim.nesterov) == (99, True)
    with pytest.raises(UserErrors) as caught:
        load_run(folder, ["trainer.epoch=3", "optim=adam", "~nothing", "seed=-1"])
    text = str(caught.value)
    for part in (
        "trainer.epoch: unknown key",
        "are fixed once it has started",
        "nothing of that name",
        "seed: out of range",
    ):
        assert part in text
    assert "4 problems found" in text


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        load_run(tmp_path)
    (folder / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"config.yaml: can't be read"):
        load_run(folder)
    (folder / "config.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="holds no configuration"):
        load_run(folder)


def test_an_edited_file_is_checked_with_its_lines(folder: Path) -> None:
    path = save(compose([]).cfg, folder)
    path.write_text(path.read_text().replace("epochs: 20", "epochs: ten"))
    line = path.read_text().splitlines().index("  epochs: ten") + 1
    with pytest.raises(UserErrors, match=f"(?s)trainer.epochs: wrong type.*config.yaml:{line}"):
        load_run(folder)


@pytest.mark.thorough
def test_a_new_run_from_an_old_one_chooses_options_anew(cli: Callable[..., Any], project: Path) -> None:
    short = ("trainer.steps=1", "logger.tensorboard.enabled=false", "metrics.figures=[]")
    assert cli("train", "data=wine", *short, "hydra.run.dir=outputs/a").code == 0
    done = cli("train", "--from", "outputs/a", "logger=quiet", "data=diabetes", "hydra.run.dir=outputs/b")
    assert done.code == 0, done.err
    cfg = load_run(project / "outputs/b").cfg
    assert (cfg.logger.console.style, cfg.trainer.steps) == ("quiet", 1)
    targets = [cfg[part]["_target_"] for part in ("loss",)] + [cfg.data.dataset["_target_"]]
    assert targets == ["torch.nn.MSELoss", "lightkit.data.tables.diabetes"], "data bring their loss along"
    assert cfg.metrics.monitor.startswith("val/")
    refused = cli("train", "--from", "outputs/a", "logger=quite")
    assert (refused.code, "logger: no such option" in refused.err) == (2, True)
    assert "fixed once it has started" in cli("resume", "outputs/a", "model=cnn").err


def test_a_run_that_has_begun_computes_elsewhere_and_in_the_same_way(folder: Path, toy: Path) -> None:
    before = ["device=ddp", "device.precision=bf16", "device.threads=2", "logger=quiet", "logger.every_steps=7"]
    save(compose([*before, "checkpoint.keep_last=3"]).cfg, folder)
    cfg = load_run(folder, ["device=cpu", "logger=default", "checkpoint=none"]).cfg
    assert (cfg.device.name, cfg.device.parallel, cfg.device.nproc) == ("cpu", "none", 1)
    assert (cfg.device.precision, cfg.device.threads) == ("bf16", 2)
    assert (cfg.logger.console.style, cfg.logger.tensorboard.enabled, cfg.logger.every_steps) == ("auto", True, 7)
    assert (cfg.checkpoint.enabled, cfg.checkpoint.keep_last) == (False, 3)
    assert load_run(folder, ["device.nproc=3", "device=ddp"]).cfg.device.nproc == 3, "single values come after"
    own = toy / "conf" / "device" / "node.yaml"
    own.parent.mkdir(exist_ok=True)
    own.write_text("# Ours.\ndefaults: [cpu]\nprecision: fp64\n")
    assert load_run(folder, ["device=node"]).cfg.device.precision == "fp64"
    assert load_run(folder, ["device=cpu"]).cfg.device.precision == "fp32", "now an option says how it computes"
    with pytest.raises(UserErrors, match="device: no such option"):
        load_run(folder, ["device=gpu"])


def test_globs_are_widened_and_nothing_else_is() -> None:
    tree = {
        "finetune": {
            "freeze": ["a", "*b", "re:^c", "@head"],
            "train": None,
            "schedule": [{"epoch": 1, "unfreeze": ["d.*"], "freeze": None}],
            "rules": [{"match": "e", "lr": 1.0}, {"match": ["re:f", "g"], "name": "own"}, {"match": ["@norm", "h"]}],
            "lora": {"match": ["i"], "ranks": {"i": 2, "*j": 3}},
            "adapter": {"match": []},
            "weights": {"mapping": {"k.*": "l.*"}},
        },
        "optim": {"rules": [{"match": "m", "name": None}, "broken", {}]},
        "device": {"activation_checkpointing": ["n.*", 3]},
        "resume": {"override": ["optim.lr"]},
    }
    assert as_meant("seed: 0\n", tree) == {
        "finetune": {
            "freeze": ["*a", "*b", "re:^c", "@head"],
            "train": ["*"],
            "schedule": [{"epoch": 1, "unfreeze": ["*d.*"], "freeze": None}],
            "lora": {"match": ["*i"], "ranks": {"*i": 2, "*j": 3}},
            "adapter": {"match": []},
            "weights": {"mapping": {"k.*": "l.*"}},
        },
        "optim": {
            "rules": [
                {"match": "*m", "name": None},
                "broken",
                {},
                {"match": "*e", "lr": 1.0, "name": "e"},
                {"match": ["re:f", "*g"], "name": "own"},
                {"match": ["@norm", "*h"], "name": "norm+h"},
            ]
        },
        "device": {"activation_checkpointing": ["*n.*", 3]},
        "resume": {"override": ["optim.lr"]},
    }


def test_what_is_not_there_stays_away_and_the_format_at_hand_means_what_it_says() -> None:
    for tree in ({}, {"finetune": None}, {"finetune": {"lora": 3, "rules": "x"}, "optim": []}):
        assert as_meant("", json.loads(json.dumps(tree))) == tree
    assert as_meant(f"# The head.\n{MARK}seed: 0\n", {"finetune": {"freeze": ["a"]}}) == {"finetune": {"freeze": ["a"]}}


@pytest.mark.parametrize("mark", ["", MARK])
def test_a_run_from_before_ensembles_is_one_model(folder: Path, mark: str) -> None:
    path = save(compose([]).cfg, folder)
    text = path.read_text(encoding="utf-8").replace(MARK, mark)
    tree = yaml.safe_load(text)
    head = text.partition("\n")[0]
    path.write_text(f"{head}\n{mark}{yaml.safe_dump({**tree, 'ensemble': {}}, sort_keys=False)}", encoding="utf-8")
    assert load_run(folder, known=True).cfg.ensemble._target_ == "lightkit.ensemble.methods.NoEnsemble"


@pytest.mark.parametrize("glob", ["0.*", "1", "*.weight", "re:^1", "3.weight", "*"])
def test_a_widened_glob_fits_what_the_former_one_fitted(glob: str) -> None:
    former = re.compile(glob[3:] if glob.startswith("re:") else fnmatch.translate(glob))
    [widened] = as_meant("", {"finetune": {"freeze": [glob]}})["finetune"]["freeze"]
    names = [f"{layer}{end}" for layer in (0, 1, 3, 10, 11, 13) for end in ("", ".weight", ".bias")]
    assert [name for name in names if Pattern(widened).fits(name)] == [name for name in names if former.search(name)]


def test_an_older_run_means_what_it_meant_wherever_it_is_read(folder: Path) -> None:
    path = save(compose(["finetune.freeze=['0.*']", "finetune.rules=[{match: '2.*', lr_scale: 0.5}]"]).cfg, folder)
    path.write_text(path.read_text(encoding="utf-8").replace(MARK, ""), encoding="utf-8")
    cfg = load_run(folder, known=True).cfg
    assert (cfg.finetune.freeze, cfg.optim.rules[0].match, cfg.optim.rules[0].name) == (["*0.*"], "*2.*", "2.*")
    assert from_yaml(path.read_text(encoding="utf-8"))["finetune"]["freeze"] == ["*0.*"]  # as a resume reads it
    assert MARK in save(cfg, folder).read_text(encoding="utf-8")
    assert load_run(folder).cfg.finetune.freeze == ["*0.*"], "once widened, that is what it says"


@pytest.mark.parametrize(("target", "loss"), [("kind", "CrossEntropyLoss"), ("size", "MSELoss")])
def test_a_table_that_a_new_run_chooses_brings_the_loss_of_its_target(tmp_path: Path, target: str, loss: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,size,kind\n" + "".join(f"{row},{row / 7},{'uv'[row % 2]}\n" for row in range(60)))
    save(compose(["data=digits"]).cfg, tmp_path)
    typed = ["data=table", f"data.dataset.path={table}", f"data.dataset.target={target}", "data.dataset.features=[a]"]
    cfg = load_run(tmp_path, typed, new=True).cfg
    assert cfg.loss["_target_"].endswith(loss)
    assert cfg.metrics.monitor
