"""Several options of one group in one run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import Composed, compose, compose_jobs, to_yaml
from lightkit.config.loader import ConfigLoader
from tests.composing import _merge
from tests.config.conftest import FILES, Write

Compose = Callable[..., Composed]


def test_groups_values_and_experiments_in_their_order(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", "defaults:\n  - override /optim: adam\noptim:\n  lr: 0.5\ntrainer:\n  epochs: 3\n")
    plain, chosen, forced = (
        composed(),
        composed("experiment=e"),
        composed("experiment=e", "optim=sgd", "trainer.epochs=4"),
    )
    assert (plain.cfg.optim._target_, plain.cfg.optim.lr) == ("torch.optim.SGD", 0.1)
    assert (forced.choices["optim"], forced.choices["trainer"], "experiment" in plain.choices) == (
        "sgd",
        "default",
        False,
    )
    assert forced.sources.find("trainer.epochs") == "command line: trainer.epochs=4"
    assert chosen.sources.find("optim._target_") == "conf/optim/adam.yaml:2"
    assert (chosen.cfg.optim._target_, chosen.cfg.optim.lr, chosen.cfg.trainer.epochs) == ("torch.optim.Adam", 0.5, 3)
    assert (forced.cfg.optim._target_, forced.cfg.optim.lr, forced.cfg.trainer.epochs) == ("torch.optim.SGD", 0.5, 4)


def test_config_dir_comes_first(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "more/optim").mkdir(parents=True)
    (tmp_path / "more/optim/sgd.yaml").write_text("_target_: torch.optim.SGD\nlr: 9.0\n")
    assert compose([], config_dir=str(tmp_path / "more")).cfg.optim.lr == 9.0
    with pytest.raises(UserError, match="--config-dir: no such folder"):
        compose([], config_dir=str(tmp_path / "nope"))


def test_another_file_to_start_from(toy: Path, write: Write) -> None:
    write("conf/other.yaml", "defaults:\n  - config\n  - _self_\nseed: 5\n")
    assert compose([], config_name="other").cfg.seed == 5
    with pytest.raises(UserErrors, match="no such file to start from"):
        compose([], config_name="othr")


def test_the_project_can_be_given(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert compose([], project=toy).cfg.name == "toy"


def test_experiments_by_their_names(composed: Compose, write: Write) -> None:
    write("experiments/flat.yaml", "seed: 1\n")
    write("experiments/own/own.yaml", "seed: 2\n")
    write("experiments/own/second.yaml", "defaults:\n  - own\nname: second\n")
    write("experiments/own/deep/third.yaml", "seed: 4\n")
    write("experiments/p.yaml", "# @package optim\nlr: 0.25\n")
    assert composed("experiment=p").cfg.optim.lr == 0.25
    assert composed("experiment=flat").cfg.seed == 1
    assert composed("experiment=own").cfg.seed == 2
    assert composed("experiment=own/second").cfg.seed == 2
    assert composed("experiment=own/second").cfg.name == "second"
    assert composed("experiment=own/deep/third").cfg.seed == 4
    assert composed("experiment=[flat,own]").cfg.seed == 2
    assert composed("+experiment=flat").cfg.seed == 1
    assert composed("experiment=null").cfg.seed == 0
    assert composed("experiment=own").sources.find("seed") == "experiments/own/own.yaml:1"


def test_modules_of_the_project_and_of_experiments_are_targets(composed: Compose, write: Write) -> None:
    write(
        "experiments/mine/nets.py",
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, num_classes, size: int = 3): ...\n",
    )
    write(
        "experiments/mine/mine.yaml",
        "defaults:\n  - override /model: any\nmodel:\n  _target_: experiments.mine.nets.Net\n",
    )
    assert composed("experiment=mine", "model.size=4").cfg.model.size == 4
    with pytest.raises(UserErrors, match=r"did you mean model\.size\?"):
        compose(["experiment=mine", "model.sise=4"])


def test_a_group_outside_of_the_defaults_list_needs_no_plus(composed: Compose, write: Write) -> None:
    write("conf/extra/wide.yaml", "# Own values.\nwidth: 3\n")
    write("conf/trainer/default.yaml", "# Mine, in the place of the shipped one.\nepochs: 77\n")
    made = composed("device=cuda")
    assert (made.cfg.trainer.epochs, made.cfg.trainer.accumulate, made.cfg.device.name) == (77, 1, "cuda")
    write("conf/finetune/_mine.yaml", "audit: warn\n")
    write("conf/finetune/wide.yaml", "# Wide.\ndefaults:\n  - lora\n  - _mine\n  - _self_\nlora:\n  rank: 64\n")
    made = composed("finetune=[head,wide]")
    assert made.choices["finetune"] == "[head,wide]", "what an option is based on was not chosen"
    assert (made.cfg.finetune.lora.rank, made.cfg.finetune.audit) == (64, "warn")
    assert composed("extra=wide").cfg.extra.width == 3
    assert composed("+extra=wide").cfg.extra.width == 3
    assert composed("+optim=adam").cfg.optim._target_ == "torch.optim.Adam"


def test_deleting_values_and_groups(composed: Compose) -> None:
    cfg = composed("~data.augment", "~optim.momentum").cfg
    assert cfg.data.augment == []
    assert "momentum" not in cfg.optim


def test_quotes_lists_dicts_and_interpolations_reach_the_configuration(composed: Compose) -> None:
    cfg = composed("name='a, b'", "extra={a: [1, 2.5, null, true], b: 'x=y'}", "seed=${extra.a[0]}").cfg
    assert cfg.name == "a, b"
    assert cfg.extra.a == [1, 2.5, None, True]
    assert cfg.extra.b == "x=y"
    assert cfg.seed == 1


def test_broken_yaml_names_file_and_line(toy: Path, write: Write) -> None:
    write("conf/optim/sgd.yaml", "_target_: a\nlr: [1, 2\nmomentum: 3\n")
    with pytest.raises(UserErrors, match=r"not valid YAML(.|\n)*conf/optim/sgd.yaml:[23]"):
        compose([])
    write("experiments/e.yaml", "optim:\n  lr: 1\n lr: 2\n")
    write("conf/optim/sgd.yaml", "_target_: torch.optim.SGD\n")
    with pytest.raises(UserErrors, match=r"not valid YAML(.|\n)*experiments/e.yaml:3"):
        compose(["experiment=e"])


@pytest.fixture
def shallow() -> Iterator[None]:
    """Files that include each other end sooner: every file that is read takes time."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 300)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.thorough
def test_a_file_that_includes_itself(write: Write, report: Callable[..., str], shallow: None) -> None:
    write("conf/model/loop.yaml", "defaults:\n  - loop\n")
    assert "loop.yaml includes itself" in report("model=loop")
    write("conf/config.yaml", FILES["conf/config.yaml"].replace("defaults:\n", "defaults:\n  - config\n"))
    text = report()
    assert "config.yaml includes itself" in text
    assert "at:       conf/config.yaml:" in text
    assert "stands in for the shipped one" in text


def test_files_that_include_each_other(write: Write, report: Callable[..., str], shallow: None) -> None:
    write("conf/model/one.yaml", "defaults:\n  - two\n")
    write("conf/model/two.yaml", "defaults:\n  - one\n")
    assert "one.yaml includes itself: model/one → model/two → model/one" in report("model=one")


def test_a_run_without_name_is_called_after_its_experiment(write: Write, composed: Compose) -> None:
    write("experiments/deep/try.yaml", "# Try.\nname: null\nseed: 1\n")
    assert composed("experiment=deep/try").cfg.name == "deep_try"
    assert composed("name=null").cfg.name == "toy_net"
    write("experiments/a.yaml", "name: null\n")
    made = composed("experiment=[a,deep/try]")
    assert (made.cfg.name, made.choices["experiment"]) == ("a_deep_try", "[a,deep/try]")


TABLE = """\
extra:
  rates: {sgd: 0.25, adam: 0.5}
  words: ["with ${hydra:runtime.choices.optim}", {deeper: "${ hydra : runtime.choices.optim }"}]
optim:
  lr: ${extra.rates.${hydra:runtime.choices.optim}}
"""


def test_compositions_do_not_share_their_choices(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", TABLE)
    first, second = composed("experiment=e"), composed("experiment=e", "optim=adam")

    assert (first.cfg.optim.lr, second.cfg.optim.lr) == (0.25, 0.5)
    assert first.cfg.extra.words == ["with sgd", {"deeper": "sgd"}]
    assert OmegaConf.create(to_yaml(first.cfg)).optim.lr == 0.25


def test_what_is_stored_again_for_hydra_in_a_notebook_counts(
    composed: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConfigLoader, "_compose_config_from_defaults_list", _merge)  # in place of what tests share
    monkeypatch.setattr(ConfigStore.instance(), "repo", {**ConfigStore.instance().repo})
    for width in (8, 99):
        node = {"_target_": "toy.Net", "hidden": [width]}
        ConfigStore.instance().store(group="model", name="stored", node=node)
        assert composed("model=stored").cfg.model.hidden == [width]


def test_choice_without_an_entry_is_told_with_its_name(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", TABLE.replace("adam: 0.5", "adams: 0.5"))

    with pytest.raises(UserErrors, match=r"extra\.rates\.adam' not found(?s:.*)received: '\$\{extra\.rates\.adam\}'"):
        composed("experiment=e", "optim=adam")


def test_group_that_is_not_there_is_an_error(composed: Compose, write: Write) -> None:
    """Also where Hydra has run in this process before, and would give something."""
    write("experiments/e.yaml", "extra:\n  x: ${hydra:runtime.choices.optimm}\n")
    OmegaConf.register_new_resolver("hydra", lambda _path: None, replace=True)
    try:
        with pytest.raises(UserErrors, match=r"extra\.x: the interpolation can't be resolved"):
            composed("experiment=e")
    finally:
        OmegaConf.clear_resolver("hydra")


Report = Callable[..., str]


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["finetune=[head,lora]", "finetune=[head, lora]", "+finetune=[head,lora]"])
def test_several_options_are_merged_in_their_order(composed: Compose, text: str) -> None:
    made = composed(text, "finetune.lora.rank=4")
    assert composed("finetune=[lora,bitfit]").cfg.finetune.train == ["@bias", "@head"]
    assert composed("finetune=[bitfit,lora]").cfg.finetune.train == ["@head"], "lists are replaced"
    assert composed("finetune=[lora]").choices["finetune"] == "lora"
    assert made.choices["finetune"] == "[head,lora]"
    assert made.cfg.finetune.freeze == ["*"]
    assert made.cfg.finetune.lora.match == ["@linear", "@conv", "@attention"]
    assert made.cfg.finetune.lora.rank == 4
    assert made.sources.find("finetune.train").endswith("conf/finetune/lora.yaml:3")  # type: ignore[union-attr]


def test_an_experiment_names_several_and_the_command_line_wins(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", "defaults:\n  - override /finetune: [head, lora]\nfinetune:\n  lora:\n    rank: 2\n")
    made, other = composed("experiment=e"), composed("experiment=e", "finetune=[bitfit]")
    assert (made.choices["finetune"], made.choices["experiment"], made.cfg.finetune.lora.rank) == (
        "[head,lora]",
        "e",
        2,
    )
    assert (other.choices["finetune"], other.cfg.finetune.train) == ("bitfit", ["@bias", "@head"])


@pytest.mark.thorough
def test_a_sweep_over_lists_of_options(toy: object) -> None:
    jobs = compose_jobs(["finetune=none,lora,[head,lora]", "seed=1,2"])
    assert [job.choices["finetune"] for job in jobs[::2]] == ["none", "lora", "[head,lora]"]
    assert jobs[5].overrides == ["finetune=[head,lora]", "seed=2"]
    with pytest.raises(UserErrors, match=r"(?s)finetune: no such option.*received: 'lroa'.*1 problem found"):
        compose_jobs(["finetune=none,[head,lroa],lora"])


@pytest.mark.parametrize("made", [compose_jobs, compose], ids=["sweep", "run"])
def test_a_range_of_fractions_counts_from_zero_in_ones(made: Callable[[list[str]], object]) -> None:
    with pytest.raises(UserErrors) as raised:
        made(["optim.lr=range(0.1)"])
    assert "optim.lr: this range counts from 0 to 0.1 in steps of 1, which is one value" in str(raised.value)
    assert "fix:      the values themselves: optim.lr=0.001,0.01,0.1" in str(raised.value)
    assert len(raised.value.errors) == 1
    rates = [job.cfg.optim.lr for job in compose_jobs(["optim.lr=range(0.1,0.35,0.1)"])]
    assert rates == pytest.approx([0.1, 0.2, 0.3])


def test_a_decimal_comma_in_a_file_says_how_numbers_are_written(write: Write, report: Report) -> None:
    write("experiments/comma.yaml", "optim:\n  lr: 0,001\ntrainer:\n  epochs: 1,5\nname: 0,5\n")
    text = report("experiment=comma")
    assert "fix:      optim.lr=0.001, with a point" in text
    assert "fix:      trainer.epochs=1.5, with a point" not in text, "which is no whole number either"
    assert "2 problems found" in text


def test_an_empty_mapping_removes_nothing_and_is_told_once(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        cfg = compose(["metrics.train={}", "extra={}", "data=wine", "name=Überlauf"]).cfg
    assert (list(cfg.metrics.train), cfg.name) == (["accuracy"], "Überlauf")
    (line,) = [message for message in caplog.messages if "removes nothing" in message]
    assert line.startswith("metrics.train={} removes nothing")
    assert line.endswith(" ~metrics.train.accuracy")
