"""Runs from elsewhere: what is in an archive runs no code, and the user's own runs go on without a word."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import load_run, signatures
from lightkit.config.origins import dotted
from lightkit.config.policy import user_only_keys
from tests.conftest import Cli
from tests.runner.finished_runs import trained

TINY = ("data=wine", "trainer.epochs=1", "device=cpu", "model.hidden=[4]", "metrics.figures=[]", "logger=quiet")
OWN = ("model._target_=own_nets.Net",)
NET = "from lightkit.models import MLP\n\n\nclass Net(MLP):\n    pass\n"
PAYLOAD = f"from pathlib import Path\n\nPath('canary').touch()\n{NET}"


@pytest.fixture
def home(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's project, with a module of its own; nothing of it stays importable."""
    (project / "own_nets.py").write_text(NET)
    monkeypatch.setattr(sys, "path", [*sys.path])
    signatures.clear()
    yield project
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_nets", "received")]:
        del sys.modules[name]
    signatures.clear()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of somebody else, who has put a module of theirs beside it for its model."""
    run = trained(tmp_path_factory.mktemp("archive") / "run1", "device=cpu", "checkpoint.export=model")
    (run / ".mark").unlink(missing_ok=True)
    rewrite(run, lambda tree: tree["model"].update(_target_="received.payload.Net"))
    (run.parent / "payload.py").write_text(PAYLOAD)
    return run.parent


@pytest.fixture
def received(home: Path, archive: Path) -> Path:
    """That archive, unpacked in the project."""
    return Path(shutil.copytree(archive, home / "received")) / "run1"


def rewrite(run: Path, change: Callable[[Any], Any]) -> None:
    """Change the configuration of a run, in its file."""
    tree = yaml.safe_load((run / "config.yaml").read_text())
    change(tree)
    (run / "config.yaml").write_text(yaml.safe_dump(tree))


def in_checkpoint(run: Path, change: Callable[[Any], Any]) -> None:
    """Change the configuration of a run, in its newest checkpoint."""
    store = CheckpointStore(run / "checkpoints", mode="max")
    found = store.load_newest()
    assert found is not None
    tree = yaml.safe_load(found[1]["config"])
    change(tree)
    store.save({**found[1], "config": yaml.safe_dump(tree)}, step=10_000, value=1.0, epoch=1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        ["eval", "received/run1"],
        ["resume", "received/run1", "trainer.epochs=2"],
        ["train", "--from", "received/run1"],
        ["train", "-m", "--from", "received/run1", "seed=1,2"],
        ["train", *TINY, "finetune.distill.teacher=received/run1"],
        ["plan", *TINY, "finetune.distill.teacher=received/run1"],
    ],
    ids=lambda command: " ".join(word for word in command if word not in TINY),
)
def test_an_archive_in_the_project_runs_nothing_until_it_is_named(
    received: Path, cli: Cli, process: Cli, command: list[str]
) -> None:
    cli = process if "-m" in command else cli  # a sweep starts processes
    in_checkpoint(received, lambda tree: tree["model"].update(_target_="received.payload.Net"))
    done = cli(*command)
    assert not Path("canary").exists()
    if command[0] == "plan":  # which builds no teacher
        return
    assert (done.code, done.err.count("fix:")) == (2, 1), done.err
    assert "trust=[received.payload.Net] if you know who made it" in done.err
    assert cli(*command, "trust=[received.payload.Net]").code == 0
    assert Path("canary").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("command", [["convert", "--to", "model"], ["merge"]], ids=lambda command: command[0])
def test_ckpt_builds_the_model_of_a_received_run_with_trust_only(received: Path, cli: Cli, command: list[str]) -> None:
    done = cli("ckpt", *command, "received/run1", "out.pt")
    assert (done.code, done.err.count("fix:")) == (2, 1)
    assert "--trust if you know who made it" in done.err
    assert not Path("canary").exists()
    assert cli("ckpt", *command, "received/run1", "out.pt", "--trust").code == 0
    assert Path("canary").exists()


def test_a_checkpoint_names_no_target_that_its_run_does_not(received: Path, cli: Cli) -> None:
    rewrite(received, lambda tree: tree["model"].update(_target_="lightkit.models.MLP"))
    in_checkpoint(received, lambda tree: tree["model"].update(_target_="received.payload.Net"))
    done = cli("resume", "received/run1", "trainer.epochs=2")
    assert done.code == 2
    assert "trust=[received.payload.Net]" in done.err
    assert not Path("canary").exists()


@pytest.mark.thorough
def test_my_own_runs_go_on_without_a_word(home: Path, cli: Cli, process: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("train", *TINY, *OWN, "hydra.run.dir=outputs/one").code == 0
    assert cli("resume", "outputs/one", "trainer.epochs=2").code == 0
    assert process("train", "-m", "--from", "outputs/one", "seed=1,2", "hydra.sweep.dir=outputs/sweep").code == 0
    Path("outputs/one").rename("kept")
    moved = home.rename(home.with_name("renamed"))
    monkeypatch.chdir(moved)
    for run in ("kept", "outputs/sweep/seed=1"):
        done = cli("eval", run)
        assert (done.code, done.err) == (0, "")
    monkeypatch.chdir(moved / "kept")
    assert cli("eval", ".").code == 0
    assert cli("train", *TINY, *OWN, "resume=auto", f"hydra.run.dir={moved}/kept", "trainer.epochs=3").code == 0


@pytest.mark.thorough
@pytest.mark.parametrize("why", ["another machine", "an older lightkit", "an edit"])
def test_a_run_that_cannot_be_known_says_in_one_message_what_to_do(
    home: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    assert cli("train", *TINY, *OWN, "hydra.run.dir=run").code == 0
    if why == "another machine":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    elif why == "an older lightkit":
        Path("run/.mark").unlink()
    else:
        rewrite(home / "run", lambda tree: tree.update(seed=3))
    done = cli("eval", "run")
    assert (done.code, done.err.count("fix:")) == (2, 1)
    fix = next(line for line in done.err.splitlines() if "fix:" in line).split()[1]
    assert fix == "trust=[own_nets.Net]"
    assert cli("eval", "run", fix).code == 0
    assert cli("resume", "run", "trainer.epochs=2", fix).code == 0
    assert cli("eval", "run").code == 0  # as it is ours from then on


def forged(key: Path, project: Path, text: str) -> str:
    """The mark that somebody makes with a key in the folder of a project."""
    facts, inode = key.stat(), project.stat().st_ino
    secret = hashlib.sha256(key.read_bytes() + f"{facts.st_ino} {facts.st_ctime_ns}".encode()).digest()
    signed = json.dumps([str(project), inode, "\n".join(text.rstrip().split("\n")[1:])])
    mac = hmac.new(secret, signed.encode(), hashlib.sha256).hexdigest()
    return json.dumps({"project": str(project), "inode": inode, "mac": mac})


@pytest.mark.parametrize("home_is_written", [True, False], ids=["with a home", "without"])
def test_a_key_in_a_shared_folder_signs_nothing(
    home: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home_is_written: bool
) -> None:
    assert cli("train", *TINY, "hydra.run.dir=outputs/theirs").code == 0
    run, key = home / "outputs" / "theirs", home / "outputs" / ".key"
    rewrite(run, lambda tree: tree.update(on_end=["touch", "canary"]))
    (run / "config.yaml").write_text("# Whole.\n" + (run / "config.yaml").read_text())
    key.write_bytes(bytes(32))
    (run / ".mark").write_text(forged(key, home.resolve(), (run / "config.yaml").read_text()))
    if not home_is_written:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert cli("resume", "outputs/theirs", "trainer.epochs=2").code == 0
    assert not Path("canary").exists()


def test_without_a_key_a_run_says_what_its_resume_will_need(
    home: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    done = cli("train", *TINY, *OWN, "hydra.run.dir=run")
    assert done.code == 0
    log = Path("run/run.log").read_text()
    assert log.count("a resume will take this run for one from elsewhere") == 1
    assert "XDG_STATE_HOME=FOLDER" in log
    assert not (home / "outputs" / ".key").exists()
    done = cli("eval", "run")
    assert (done.code, done.err.count("fix:")) == (2, 1)
    assert "XDG_STATE_HOME=FOLDER" in done.err
    done = cli("train", "-m", *TINY, *OWN, "seed=1,2")  # its jobs would be refused one by one
    assert done.code == 2
    assert "XDG_STATE_HOME=FOLDER" in done.err
    assert not (home / "outputs" / "sweeps").exists()


class Boom:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("canary"),)


def granted(value: Any) -> Any:
    """A value that grants what a key can grant."""
    return {bool: True, list: ["subprocess"]}[type(value)]


def at(tree: Any, key: tuple[str | int, ...]) -> Any:
    """What a configuration says for a key."""
    for part in key:
        tree = tree[part]
    return tree


def test_no_key_of_a_received_configuration_grants_trust(home: Path, cli: Cli) -> None:
    text = cli("config", *TINY, "--resolve").out
    (home / "received").mkdir()
    for key in user_only_keys():
        tree = yaml.safe_load(text)
        default = at(tree, key)
        at(tree, key[:-1])[key[-1]] = granted(default)
        (home / "received" / "config.yaml").write_text(yaml.safe_dump(tree))
        shown = cli("train", "--from", "received", "--cfg", "job")
        assert at(yaml.safe_load(shown.out), key) == default, dotted(key)
        typed = f"{dotted(key)}={str(granted(default)).replace(chr(39), '')}"
        assert at(yaml.safe_load(cli("train", "--from", "received", "--cfg", "job", typed).out), key) == granted(
            default
        )


def test_a_received_run_unpickles_nothing(home: Path, cli: Cli) -> None:
    torch.save(Boom(), "boom.pt")
    tree = yaml.safe_load(cli("config", *TINY, "--resolve").out)
    tree["finetune"]["weights"] |= {"path": "boom.pt", "trust": True}
    (home / "received").mkdir()
    (home / "received" / "config.yaml").write_text(yaml.safe_dump(tree))
    done = cli("train", "--from", "received")
    assert done.code == 5
    assert "finetune.weights.trust=true" in done.err
    assert not Path("canary").exists()
    cli("train", "--from", "received", "finetune.weights.trust=true")
    assert Path("canary").exists()


def test_what_grants_trust_is_not_reached_by_a_detour(home: Path, cli: Cli) -> None:
    tree = yaml.safe_load(cli("config", *TINY, "--resolve").out)
    tree["extra"] = {"weights": {**tree["finetune"]["weights"], "path": "boom.pt", "trust": True}}
    tree["finetune"]["weights"] = "${extra.weights}"
    (home / "received").mkdir()
    (home / "received" / "config.yaml").write_text(yaml.safe_dump(tree))
    done = cli("train", "--from", "received")
    assert done.code == 2
    assert "finetune.weights: refers to another place" in done.err


def test_the_configuration_in_a_checkpoint_grants_nothing(received: Path, home: Path, cli: Cli) -> None:
    torch.save(Boom(), home / "boom.pt")
    weights = {"path": "boom.pt", "trust": True}

    def grant(tree: Any) -> None:
        tree["model"]["_target_"] = "lightkit.models.MLP"
        tree["finetune"]["weights"] |= weights
        tree["checkpoint"]["export"] = "adapter"

    rewrite(received, grant)
    in_checkpoint(received, grant)
    cli("resume", "received/run1", "trainer.epochs=2")
    assert load_run(received).cfg.finetune.weights.trust is False
    assert not Path("canary").exists()


def test_what_was_granted_for_one_file_is_not_for_another(home: Path, cli: Cli) -> None:
    folder = home / "mine"
    folder.mkdir()
    shown = cli("config", *TINY, "finetune.weights.trust=true").out
    assert yaml.safe_load(shown)["finetune"]["weights"]["trust"] is True
    from lightkit.config import compose, save

    save(compose([*TINY, "finetune.weights.trust=true"]).cfg, folder)
    assert load_run(folder).cfg.finetune.weights.trust is True
    assert load_run(folder, ["finetune.weights.key=model"]).cfg.finetune.weights.trust is False
