"""`conf/config.yaml` of a project: what it chooses and sets is added to the shipped file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lightkit.config import compose, load_run, save
from lightkit.config.project import shipped_conf
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
Write = Callable[[str], None]
SMALL = """\
# What runs of this project have by default.
defaults:
  - data: wine
  - override optim: sgd
trust: [birds]
optim:
  lr: 0.05
trainer: {epochs: 7}
extra:
  sizes: [1, 2]
"""


@pytest.fixture
def config(project: Path) -> Write:
    """Writes the `conf/config.yaml` of the project."""

    def write(text: str) -> None:
        (project / "conf").mkdir(exist_ok=True)
        (project / "conf/config.yaml").write_text(text, encoding="utf-8")

    return write


def test_it_adds_choices_and_values(config: Write) -> None:
    config(SMALL)
    made = compose()
    assert (made.choices["data"], made.choices["optim"], made.choices["model"]) == ("wine", "sgd", "mlp")
    assert (made.cfg.optim.lr, made.cfg.trainer.epochs, made.cfg.trust) == (0.05, 7, ["birds"])
    assert (made.cfg.name, made.cfg.optim.momentum) == ("wine_mlp", 0.9)
    assert made.sources.find("optim.lr") == "conf/config.yaml:7"


def test_the_command_line_and_experiments_win(config: Write, project: Path) -> None:
    config(SMALL)
    experiment = "defaults:\n  - override /data: diabetes\ntrainer: {epochs: 8}\n"
    (project / "experiments/other.yaml").write_text(experiment, encoding="utf-8")
    made = compose(["experiment=other", "optim=adam", "extra.sizes=[3]"])
    assert (made.choices["data"], made.choices["loss"], made.choices["optim"]) == ("diabetes", "mse", "adam")
    assert (made.cfg.trainer.epochs, made.cfg.optim.lr, made.cfg.extra.sizes) == (8, 0.05, [3])
    assert compose(["trainer.epochs=9", "optim.lr=0.2"]).cfg.optim.lr == 0.2


def test_it_wins_over_what_a_data_set_brings(config: Write) -> None:
    config("defaults:\n  - loss: l1\n  - data: diabetes\n")
    assert compose().choices["loss"] == "l1"


@pytest.mark.thorough
@pytest.mark.parametrize("entry", ["config", "/config", "_self_"])
def test_it_may_say_that_it_goes_over_the_shipped_one(config: Write, entry: str) -> None:
    config(f"defaults:\n  - {entry}\n  - finetune: [norm, bitfit]\nseed: 3\n")
    made = compose()
    assert (made.cfg.seed, made.choices["finetune"]) == (3, "[norm,bitfit]")


def test_files_of_the_project_come_in_as_usual(config: Write, project: Path) -> None:
    config("defaults:\n  - more\ntrainer: {epochs: 3}\n")
    (project / "conf/more.yaml").write_text("seed: 5\ntrainer: {epochs: 4}\n", encoding="utf-8")
    made = compose()
    assert (made.cfg.seed, made.cfg.trainer.epochs) == (5, 3)
    assert made.sources.find("seed") == "conf/more.yaml:1"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "trainer:\n  epoch: 3\n",
            ["trainer.epoch: unknown key", "conf/config.yaml:2", "did you mean trainer.epochs?"],
        ),
        ("defaults:\n  - data: wein\n", ["data: no such option", "conf/config.yaml:2", "nearest: wine"]),
        ("defaults:\n  - overide data: wine\n", ["unknown word in a defaults list", "conf/config.yaml:2"]),
        ("sede: 3\n", ["sede: unknown key", "conf/config.yaml:1", "did you mean seed?"]),
        ("loss: mse\n", ["loss: wrong type", "conf/config.yaml:1", "`- override /loss: mse` in the `defaults` list"]),
        ("defaults:\n  - experiment: wine\n", ["an experiment is chosen on the command line", "conf/config.yaml:2"]),
        ("model: {_target_: birds.Net}\n", ["birds", "conf/config.yaml:1"]),
        ("a: [\n", ["not valid YAML", "conf/config.yaml:2"]),
    ],
)
def test_mistakes_are_told_with_their_line(cli: Cli, config: Write, text: str, said: list[str]) -> None:
    config(text)
    done = cli("config")
    assert done.code == 2
    assert all(part in done.err for part in said), done.err


def test_what_comes_from_it_is_marked(cli: Cli, config: Write) -> None:
    config(SMALL)
    lines = cli("config", "optim=adam").out.splitlines()
    assert [line.strip() for line in lines if "#" in line] == [
        "# data=wine is chosen in conf/config.yaml:3",
        "lr: 0.05  # conf/config.yaml:7",
        "epochs: 7  # conf/config.yaml:8",
        "sizes:  # conf/config.yaml:10",
        "trust:  # conf/config.yaml:5",
    ]
    assert cli("config", "-p", "trainer").out.splitlines()[2] == "epochs: 7  # conf/config.yaml:8"


def test_a_file_that_chooses_everything_stands_in_for_the_shipped_one(config: Write, project: Path) -> None:
    (project / "conf").mkdir()
    shutil.copy(shipped_conf() / "config.yaml", project / "conf/config.yaml")
    text = (project / "conf/config.yaml").read_text(encoding="utf-8")
    kept = "".join(line for line in text.splitlines(keepends=True) if "_project" not in line)
    config(kept.replace("seed: 0 ", "seed: 4 ").replace("- data: digits", "- data: wine"))
    made = compose()
    assert (made.cfg.seed, made.choices["data"]) == (4, "wine")
    assert compose(["data=diabetes"]).choices["loss"] == "mse"  # its own `loss: cross_entropy` is no override


def test_what_it_trusts_counts_for_runs_too(config: Write, project: Path) -> None:
    (project / "birds.py").write_text("", encoding="utf-8")
    config("trust: [math]\n")
    run = project / "outputs/runs/a"
    run.mkdir(parents=True)
    save(compose().cfg, run)
    assert yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["trust"] == ["math"]
    assert load_run(run).cfg.trust == ["math"]
    config("seed: 1\n")
    assert load_run(run).cfg.trust == ["math"], "the run is the project's own, and keeps what it was started with"
