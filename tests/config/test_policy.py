"""What a `_target_` may name: nothing dangerous is built, called or even imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, instantiate, load_run, save, signatures
from lightkit.config.judging import judge, verify, violations
from lightkit.config.loader import locate
from lightkit.config.modules import Module
from lightkit.config.policy import Trust
from lightkit.config.project import make_importable, project_folders, project_root
from lightkit.config.signatures import Signature, TargetError, clear
from tests.config.conftest import Write


def _words(text: str) -> list[str]:
    return text.split()


DANGEROUS = _words(
    """
os.system os.remove os._exit posix.system subprocess.Popen subprocess.run builtins.eval builtins.exec builtins.open
builtins.__import__ shutil.rmtree pathlib.Path.unlink pathlib.Path io.open importlib.import_module runpy.run_path
code.interact pty.spawn pickle.loads pickle.load marshal.loads shelve.open ctypes.CDLL webbrowser.open sys.exit
socket.create_connection urllib.request.urlopen http.server.test tempfile.mkdtemp multiprocessing.Process
threading.Thread functools.partial functools.reduce operator.methodcaller operator.attrgetter types.FunctionType
hydra.utils.instantiate hydra.utils.call hydra.utils.get_method omegaconf.OmegaConf.load yaml.unsafe_load
numpy.load numpy.fromfile numpy.memmap joblib.load sklearn.datasets.fetch_openml fractions.Fraction
torch.load torch.save torch.from_file torch.compile torch.hub.load torch.hub.load_state_dict_from_url torch.jit.load
torch.serialization.load torch.utils.cpp_extension.load torch.package.PackageImporter torch.distributed.run.main
torch.multiprocessing.spawn torch._C._jit_clear_class_registry torch.utils.data.datapipes.iter.FileOpener
torch.nn.Module.load_state_dict torch.nn.Module.apply torch.nn.Linear.__init__.__globals__
torch.nn.modules.module.functools.partial torch.nn.modules.module.torch.load torch.nn.functional.importlib.import_module
torchvision.datasets.utils.download_url torchvision.datasets.utils.extract_archive torchvision.datasets.LSUN
torchvision.io.write_file torchvision.datasets.folder.os.remove timm.create_model timm.models.load_checkpoint
lightkit.cli.main lightkit.cli.entry.os.system lightkit.runner.Runner lightkit.config.instantiate
lightkit.config.loader.split_sweep lightkit.config.loader.locate
lightkit.processes.files.write_whole lightkit.processes.children.run
lightkit.metrics.figures.Figures lightkit.optim.layers.importlib.import_module lightkit.models.zoo._package
lightkit.data.images.Path lightkit.__main__.main
"""
)
WALKS = _words(
    """
toy_walks.subprocess.run toy_walks.run toy_walks.sh.rmtree toy_walks.again toy_walks.math.sqrt toy_walks.join
toy_walks.Kept.unlink toy_walks.Net.method toy_walks._Hidden toy_walks.torch.load toy_walks.os.path.join
toy_walks.inner.os.system toy_walks.torch.hub.load outside.boom outside.deep.Boom
"""
)
DISGUISED = ["toy_walks.alias", "toy_walks.table", "toy_walks.made"]
"""What the source does not show: refused when the object is seen."""
SLOTS = {
    "model._target_": "model._target_",
    "model.body={_target_: %s}": "model.body._target_",
    "data.dataset._target_": "data.dataset._target_",
    "data.augment=[{_target_: toy.Noise, _args_: [[{a: {_target_: %s}}]]}]": "data.augment[0]._args_[0][0].a._target_",
    "loss={_target_: %s, _partial_: true}": "loss._target_",
    "optim._target_": "optim._target_",
    "scheduler._target_='${extra.deep}'": "scheduler._target_",
    "metrics.val.other._target_": "metrics.val.other._target_",
    "trainer.task._target_": "trainer.task._target_",
    "trainer.callbacks.one='${extra.node}'": "trainer.callbacks.one._target_",
    "extra={deep: %s, node: {_target_: %s}}": "extra.node._target_",
    "+hydra.callbacks.mine._target_": "hydra.callbacks.mine._target_",
}
MODULE = """\
import math
import os
import shutil as sh
import subprocess
from os import *
from os.path import join
from pathlib import Path
from subprocess import run

import torch

import inner

again = sh.rmtree
alias = getattr(os, "system")
table = [os.system][0]
made = __import__("functools").partial(os.system, "touch canary")


class Kept(Path):
    pass


class Net:
    def __init__(self, width: int = 1):
        self.width = width

    def method(self): ...

    @classmethod
    def make(cls): return cls(7)


class _Hidden: ...
"""
BOOM = "from pathlib import Path\nPath('canary').touch()\n\n\ndef boom(*a, **k): ...\n\n\nclass Boom: ...\n"


def trust(*entries: str) -> Trust:
    return Trust(entries, project_folders())


@pytest.fixture
def walks(toy: Path, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project with a module full of foreign names, and a package beside it that leaves a file on import."""
    write("toy_walks.py", MODULE)
    write("inner.py", "import os\n")
    for name in ("__init__.py", "deep.py"):
        (tmp_path / "lib/outside").mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib/outside" / name).write_text(BOOM)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    clear()
    return toy


@pytest.fixture(autouse=True)
def untouched(request: pytest.FixtureRequest) -> Any:
    """Whatever a test does: no module is imported for it by accident, no canary sings."""
    yield
    for name in ("toy_walks", "inner", "outside", "outside.deep"):
        sys.modules.pop(name, None)
    assert not Path("canary").exists()


def refused(*overrides: str) -> dict[str | None, UserError]:
    """Errors by key of a composition in which nothing may be imported."""
    loaded = {*sys.modules}
    with pytest.raises(UserErrors) as caught:
        compose(overrides)
    new = {name for name in {*sys.modules} - loaded if not name.startswith(("hydra", "antlr4", "omegaconf"))}
    assert not new, new
    return {error.key: error for error in caught.value.errors}


@pytest.mark.thorough
def test_dangerous_targets_are_refused_in_every_place(walks: Path) -> None:
    for target in (*DANGEROUS[::3], *WALKS[::3]):
        found = refused(*(slot.replace("%s", target) if "=" in slot else f"{slot}={target}" for slot in SLOTS))
        for key in SLOTS.values():
            assert found[key].received == target
            assert found[key].origin or key.startswith("hydra.")


def test_all_dangerous_targets_are_refused_in_one_report(walks: Path) -> None:
    wanted = {f"one{number}": target for number, target in enumerate((*DANGEROUS, *WALKS))}
    places = ("trainer.callbacks", "metrics.test")
    found = refused(*(f"{place}.{name}._target_={target}" for place in places for name, target in wanted.items()))
    for place in places:
        assert {name: found[f"{place}.{name}._target_"].received for name in wanted} == wanted
    assert len(wanted) > 90


@pytest.mark.thorough
def test_nothing_dangerous_is_called(walks: Path) -> None:
    for target in (*DANGEROUS, *WALKS, *DISGUISED):
        node = {"_target_": target, "_args_": ["touch canary"]}
        inside = {"_target_": "toy.Net", "num_classes": 1, "hidden": [], "body": [{"a": node}]}
        for one in (node, inside, {"_target_": "toy.Noise", "_args_": [[node]]}, {**node, "_partial_": True}):
            with pytest.raises(UserError, match="not among what may be built|private|a method, which|is a module"):
                instantiate(one, key="model")
    assert not Path("canary").exists()
    assert "outside" not in sys.modules


def test_a_wrong_configuration_with_refused_targets_imports_nothing(walks: Path) -> None:
    code = (
        "import sys\nfrom lightkit.config import compose\n"
        "texts = ['model._target_=outside.boom', 'optim._target_=torch.hub.load', 'loss._target_=toy_walks.run',"
        " 'data.dataset._target_=antigravity.geohash', 'optim.lrr=3']\n"
        "try: compose(texts)\nexcept ValueError as error: text = str(error)\n"
        "assert text.count('not among what may be built') == 4, text\n"
        "bad = {'torch', 'outside', 'toy_walks', 'antigravity', 'toy'} & set(sys.modules)\nassert not bad, bad\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=walks, env={"PYTHONPATH": f"{root}:{walks.parent}/lib"}
    )
    assert not (walks / "canary").exists()


def test_the_message_names_origin_and_way_out(report: Callable[..., str], write: Write) -> None:
    write("experiments/mine.yaml", "model:\n  _target_: sklearn.linear_model.Ridge\n")
    text = report("experiment=mine", "optim._target_=torch.SGD", "trust=[rich]", "loss._target_=os.system")
    for part in (
        "model._target_: sklearn.linear_model.Ridge is not among what may be built",
        "at:       experiments/mine.yaml:2",
        "expected: a class or function of lightkit.models, torch.nn, torchvision.models, timm.models, or of your own",
        "received: 'sklearn.linear_model.Ridge'",
        "write a function of your own for it, or trust=[rich, sklearn.linear_model.Ridge] if no harm",
        "at:       command line: optim._target_=torch.SGD",
        "trust=[rich, os.system]",
    ):
        assert part in text


def test_the_nearest_allowed_one_is_named(report: Callable[..., str]) -> None:
    text = report("optim._target_=shutil.SGD", "model._target_=torch.nn.modules.module.functools.Linear")
    assert "did you mean torch.optim.SGD? If not, write" in text


GOOD = _words(
    """
torch.nn.Linear torch.nn.functional.relu torch.nn.functional.gelu torch.nn.functional.conv2d
torch.nn.init.xavier_uniform_
torch.optim.SGD torch.optim.lr_scheduler.StepLR torch.utils.data.TensorDataset torch.tensor torch.ones
torchmetrics.Accuracy torchmetrics.classification.MulticlassAccuracy torchvision.models.resnet18
torchvision.models.get_model torchvision.datasets.CIFAR10 torchvision.transforms.v2.RandomCrop
timm.models.resnet.ResNet timm.optim.Lion timm.layers.DropPath lightkit.models.MLP lightkit.trainer.tasks.Supervised
torch.nn.Embedding.from_pretrained experiments.custom_task.pairs.DigitPairs toy.Net toy.Task.make toy.anything
"""
)


def test_what_is_meant_to_be_built_is_allowed(toy: Path) -> None:
    for target in GOOD:
        assert judge(target, trust()) is None, target
        assert verify(locate(target), target, trust()) is None, target


TRUSTED = {
    "math": "math.sqrt",
    "functools.partial": "functools.partial",
    "functools": "functools.partial",
    "fractions": "fractions.Fraction",
    "sklearn.linear_model": "sklearn.linear_model.Ridge",
    "os": "os.system",
    "toy_walks._Hidden": "toy_walks._Hidden",
    "subprocess": "toy_walks.run",
    "toy_walks.alias": "toy_walks.alias",
    "torch.hub": "torch.hub.load",
}


def test_trust_adds_packages_modules_and_single_names(walks: Path) -> None:
    for entry, target in TRUSTED.items():
        assert judge(target, trust()) is not None or target == "toy_walks.alias", target
        assert judge(target, trust(entry)) is None, target
        assert verify(locate(target), target, trust(entry)) is None, target


BEYOND = """
outside.deep: outside.boom
out: outside.boom
toy_walks: toy_walks.subprocess.run toy_walks.again toy_walks.Net.method
sklearn: sklearn.os.system
: os.system
"""


def test_trust_reaches_no_further_than_it_says(walks: Path) -> None:
    for line in BEYOND.strip().splitlines():
        entry, _, targets = line.partition(":")
        for target in targets.split():
            assert judge(target, trust(entry)) is not None, target


def test_trust_comes_from_files_and_the_command_line(write: Write) -> None:
    write("experiments/free.yaml", "trust: [math]\ntrainer:\n  callbacks:\n    a: {_target_: math.sqrt, _args_: [4]}\n")
    cfg = compose(["experiment=free"]).cfg
    assert cfg.trust == ["math"]
    assert instantiate(cfg.trainer.callbacks.a, key="trainer.callbacks.a") == 2.0
    again = compose(["trust=[math]", "trainer.callbacks.a={_target_: math.sqrt, _args_: [4]}"]).cfg
    assert instantiate(again.trainer.callbacks.a, key="trainer.callbacks.a") == 2.0
    with pytest.raises(UserError, match="not among what may be built"):
        instantiate({"_target_": "math.sqrt", "_args_": [4]}, key="trainer.callbacks.a")


@pytest.fixture
def run(toy: Path) -> Path:
    """A run of somebody else, whose file trusts what it needs."""
    folder = toy / "outputs" / "theirs"
    folder.mkdir(parents=True)
    texts = ["trust=[math]", "trainer.callbacks.a={_target_: math.sqrt, _args_: [4]}"]
    save(compose(texts).cfg, folder)
    (folder / ".mark").unlink()
    return folder


def test_a_run_from_elsewhere_cannot_trust_itself(run: Path) -> None:
    with pytest.raises(UserErrors) as caught:
        load_run(run)
    (error,) = caught.value.errors
    assert error.key == "outputs/theirs"
    assert error.fix == "trust=[toy.Net, toy.Schedule, math.sqrt, toy.Data, toy.Noise] if you know who made it"


def test_a_run_from_elsewhere_is_trusted_on_the_command_line_only(run: Path, write: Write) -> None:
    assert load_run(run, ["trust=[math,toy]"]).cfg.trust == ["math", "toy"]
    assert load_run(run, ["trust=[toy]", "~trainer.callbacks.a"]).cfg.trust == ["toy"]
    text = (run.parents[1] / "conf/config.yaml").read_text()
    write("conf/config.yaml", f"{text}\ntrust: [math, toy]\n")
    with pytest.raises(UserErrors, match=r"trust=\[json, toy, math.sqrt\]"):
        load_run(run, ["trust=[json,toy]"])


def test_a_run_of_this_project_keeps_what_was_trusted(toy: Path) -> None:
    folder = toy / "outputs/ours"
    folder.mkdir(parents=True)
    save(compose(["trust=[math]", "trainer.callbacks.a={_target_: math.sqrt, _args_: [4]}"]).cfg, folder)
    cfg = load_run(folder).cfg
    assert cfg.trust == ["math"]
    assert instantiate(cfg.trainer.callbacks.a, key="trainer.callbacks.a") == 2.0


@pytest.mark.thorough
@pytest.mark.parametrize("written", ["${extra.x}", "math", "[3]"])
def test_any_trust_in_the_file_of_a_run_is_dropped(run: Path, written: str) -> None:
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("trust:\n- math\n", f"trust: {written}\n"))
    with pytest.raises(UserErrors, match=r"math\.sqrt is not among what may be built(.|\n)*1 problem found"):
        load_run(run, ["trust=[toy]"])


def test_code_inside_the_folder_of_a_run_is_not_the_project(
    run: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("outputs/theirs/evil.py", BOOM)
    write("theirs/evil.py", BOOM)
    save(compose([]).cfg, run.parents[1] / "theirs")
    clear()
    for folder, target in ((run, "outputs.theirs.evil.boom"), (run.parents[1] / "theirs", "theirs.evil.boom")):
        with pytest.raises(UserErrors, match=f"{target} is not among what may be built"):
            load_run(folder, [f"trainer.callbacks.a={{_target_: {target}}}"])
    (run / "conf").mkdir()
    (run / "conf/config.yaml").write_text("trust: [math, evil]\n")
    monkeypatch.chdir(run)
    with pytest.raises(UserErrors, match=r"received: 'math\.sqrt'"):
        load_run(run, ["trust=[toy]"])


def test_a_folder_of_the_project_is_no_package_of_that_name(toy: Path) -> None:
    inner = "timm/models/theirs.py"
    from_elsewhere = Trust((), (), excluded=(toy,))
    assert not from_elsewhere.holds(Module("timm.models.theirs", toy / inner))
    assert not from_elsewhere.passes(Module("timm.models", toy / "timm/models/__init__.py"))
    assert trust().holds(Module("timm.models.theirs", toy / inner))  # as a module of the user's own
    for folder in ("venv/lib/python3/site-packages", "../usr/lib"):
        assert from_elsewhere.holds(Module("timm.models.theirs", (toy / folder / inner).resolve()))


class Animal:
    """What a slot may want."""


def test_the_wrong_kind_is_refused_before_it_is_called(toy: Path, write: Write) -> None:
    write("kinds.py", "from pathlib import Path\n\n\nclass Loud:\n    def __init__(self): Path('canary').touch()\n")
    with pytest.raises(UserError, match=r"(?s)model: kinds.Loud cannot be used here.*expected: .*Animal.*kinds.Loud"):
        instantiate({"_target_": "kinds.Loud"}, key="model", expected=Animal)
    with pytest.raises(UserError, match=r"model: toy.anything cannot be used here: it is of another kind"):
        instantiate({"_target_": "toy.anything"}, key="model", expected=Animal)
    assert instantiate({"_target_": "toy.anything"}, key="model", expected=dict) == {}
    with pytest.raises(UserError, match=r"expected: torch.nn.Module\n"):
        instantiate({"_target_": "torch.optim.SGD"}, key="model", expected=nn.Module, params=[])


def test_a_target_that_does_not_exist_is_not_looked_for_by_importing(toy: Path) -> None:
    with pytest.raises(UserError, match="torch.ops.load_library does not exist"):
        instantiate({"_target_": "torch.ops.load_library", "path": "x.so"}, key="model")


PEFT = {
    "peft/__init__.py": "from peft.tuners import LoraConfig, LoraModel\nfrom peft.config import PeftConfig\n",
    "peft/config.py": "class PeftConfig:\n    @classmethod\n    def from_pretrained(cls, path): ...\n",
    "peft/tuners/__init__.py": "from .lora import LoraConfig, LoraModel, load\n",
    "peft/tuners/lora/__init__.py": "from .config import LoraConfig\nfrom .model import LoraModel, load\n",
    "peft/tuners/lora/config.py": "import os\nfrom dataclasses import dataclass\nfrom peft.config import PeftConfig\n"
    "@dataclass\nclass LoraConfig(PeftConfig):\n    r: int = 8\n    target_modules: list[str] | str | None = None\n",
    "peft/tuners/lora/model.py": "class LoraModel: ...\n\n\ndef load(path): ...\n",
}


@pytest.fixture
def peft(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of that name and shape, which need not be installed."""
    for name, text in PEFT.items():
        (tmp_path / "peft_lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "peft_lib" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "peft_lib"))
    known = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "peft"}
    for name in known:
        monkeypatch.delitem(sys.modules, name)
    clear()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
        del sys.modules[name]
    clear()


def test_of_peft_only_configurations_are_built(peft: None, report: Callable[..., str]) -> None:
    made = compose(["finetune=peft", "finetune.peft.r=4"]).cfg.finetune.peft
    assert instantiate(made, key="finetune.peft").r == 4
    assert "did you mean finetune.peft.target_modules?" in report("finetune=peft", "finetune.peft.target_module=a")
    assert "finetune.peft.r: wrong type" in report("finetune=peft", "finetune.peft.r=many")
    others = ("LoraModel", "PeftConfig", "LoraConfig.from_pretrained", "tuners.lora.model.load", "tuners.load")
    for target in (*others, "tuners.lora.config.os.system", "tuners.lora.config.dataclass"):
        assert judge(f"peft.{target}", trust()) is not None, target
        with pytest.raises(UserError, match="not among what may be built"):
            instantiate({"_target_": f"peft.{target}"}, key="finetune.peft")


def test_a_name_is_found_however_a_starred_module_binds_it(toy: Path, write: Write) -> None:
    write("gathered_inner.py", "def listed(): ...\n\n\ndef made(): ...\n")
    write("gathered_part1.py", "def again(): ...\n")
    write("gathered.py", "from gathered_part0 import *\n")
    for name, text in {
        "defined": "def defined(): ...",
        "listed": "from gathered_inner import (\n    made,\n    listed\n)",
        "renamed": "from gathered_inner import listed as renamed",
        "assigned": "from gathered_inner import made\nassigned: object = made",
        "again": "from gathered_part1 import *",
    }.items():
        write("gathered_part0.py", text + "\n")
        clear()
        assert signatures.read(f"gathered.{name}") == Signature(())
        with pytest.raises(TargetError, match="no such name"):
            signatures.read("gathered.absent")


def test_installed_hidden_and_written_files_are_no_project(toy: Path) -> None:
    for folder in ("venv/lib/python3/site-packages/lib", ".hidden/lib", "outputs/lib", "multirun/lib"):
        assert not trust().holds(Module("lib.nets", toy / folder / "nets.py")), folder
    assert trust().holds(Module("lib.nets", toy / "lib/nets.py"))
    assert not trust().holds(Module("code", toy / "code.py")), "a name of Python's own"


def test_a_function_that_is_named_by_its_path_alone_is_judged_like_a_target(write: Write) -> None:
    write("scores.py", "def own(target, preds): ...\n")
    make_importable(project_root())
    paths = ("scores.own", "sklearn.metrics.f1_score", "torch.hub.load", "subprocess.run", "sklearn.datasets.load_wine")
    own = Trust(roots=project_folders())
    nodes = {path: {"_target_": "lightkit.metrics.Function", "function": path} for path in paths}
    for trust, refused in ((own, paths[2:]), (own.of_stranger(()), (paths[0], *paths[2:]))):
        assert [key for key, *_ in violations(nodes, trust)] == [(path, "function") for path in refused]
