"""Models that leave: what the files predict, where nothing but PyTorch or ONNX Runtime is there."""

from __future__ import annotations

import csv
import json
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit
import lightkit.runner.program as program
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from lightkit.runner.export import export
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
_ALONE = """
import runpy, sys
sys.modules["lightkit"] = None
_, script, *files = sys.argv
for file in files:
    sys.argv = [script, file]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if len(files) == 1:
            raise
        print(end.code, file=sys.stderr)
"""
_NETS = """\
import torch
from torch import nn


class Deciding(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Singular(nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(x[:, :, None] * x[:, None]) + x


class Counting(nn.Module):
    def forward(self, x):
        return x + torch.zeros(len(x), 1)


class Net(nn.Module):
    def __init__(self, in_features, num_classes, kind):
        super().__init__()
        self.first, self.body = nn.Linear(in_features, 4), nn.Sequential(nn.ReLU(), globals()[kind]())
        self.last = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.last(self.body(self.first(x)))
"""
_LIARS = """\
import torch

from lightkit.runner.program import Leaving, Program


class Liar(Program):
    def write(self, leaving, path):
        super().write(Leaving(torch.nn.Linear(13, 3), leaving.known, leaving.inputs, leaving.about), path)


class Empty(Program):
    def write(self, leaving, path):
        path.write_bytes(b"no program")
"""


@pytest.fixture
def train(cli: Cli) -> Callable[..., None]:
    """Trains a run of one epoch."""

    def run(*words: str) -> None:
        done = cli("train", "trainer.epochs=1", "logger=quiet", *words)
        assert done.code == 0, done.err

    return run


def left(folder: Path) -> set[str]:
    """What is in a folder, hidden files too, but for what the project began with."""
    return {path.name for path in folder.iterdir()} - {"experiments", "outputs", "nets.py", "liars.py", "__pycache__"}


def ran(script: Path, *files: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A file that is run, once for each of others, by an interpreter which cannot import lightkit or find this folder.

    It ends with the status of the file where there is one other; what more of them are told is a line for each."""
    words = [sys.executable, "-I", "-c", _ALONE, str(script), *files]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def ran_here(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str, str]]:
    """Does the same in this process, where nothing of lightkit can be imported meanwhile; gives what it prints."""

    def run(script: Path, *files: str) -> tuple[str, str]:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            for name in [name for name in sys.modules if name.partition(".")[0] == "lightkit"]:
                patch.delitem(sys.modules, name)
            patch.setitem(sys.modules, "lightkit", None)
            patch.setattr(sys, "argv", ["-c", str(script), *files])
            patch.chdir(tmp_path)
            exec(_ALONE, {"__name__": "alone"})
        return capfd.readouterr()

    return run


def predicted(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))[1:]


@pytest.mark.thorough(first=0)
def test_a_table_with_all_that_is_done_to_it(
    cli: Cli, train: Callable[..., None], project: Path, tmp_path: Path
) -> None:
    cells = [("" if n % 5 == 0 else n % 7, f"{n * n % 11},5", "" if n % 9 == 0 else "rgb"[n % 3]) for n in range(60)]
    lines = [f"{a};{b};{c};{'yes' if n % 7 > 3 else 'no'}\n" for n, (a, b, c) in enumerate(cells)]
    (project / "rows.csv").write_text("a;b;c;kind\n" + "".join(lines))
    words = ["data=csv", "data.dataset.path=rows.csv", "data.dataset.target=kind", 'data.dataset.delimiter=";"',
             "data.dataset.decimal=','", "data.dataset.categorical=[c]", "data.dataset.add_indicator=true",
             "data.dataset.missing={a: median, b: mean, c: most_frequent}", "trainer.ema.decay=0.5"]  # fmt: skip
    train(*words)
    for name in ("model.pt2", "model.onnx"):
        done = cli("export", "last", name, "--checkpoint", "last")
        assert done.code == 0, done.err
        assert "compared on 60 rows of the data: the largest difference is" in done.out
        assert "(0.0001 is allowed)" in done.out
    assert cli("predict", "last", "--checkpoint", "last", "--output", "all.csv").code == 0
    expected = {int(row[0]): row[2:] for row in predicted((project / "all.csv").read_text())}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("model.pt2", "predict_model_pt2.py", "model.onnx", "predict_model_onnx.py"):
        (project / name).rename(elsewhere / name)
    for name in ("pt2", "onnx"):
        done = ran(elsewhere / f"predict_model_{name}.py", str(project / "rows.csv"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == "row,prediction,p(no),p(yes)"
        found = {int(row[0]): row[1:] for row in predicted(done.stdout)}
        assert len(found) == 60
        for row, (kind, *chances) in expected.items():
            assert found[row][0] == kind
            assert [*map(float, found[row][1:])] == pytest.approx([*map(float, chances)], abs=1e-5)
    (project / "odd.csv").write_text("a;c;b\n1;r;2\n3;r;\n4;r;x\n")
    assert "odd.csv, line 4: could not convert" in ran(done.args[4], str(project / "odd.csv"), cwd=tmp_path).stderr
    (project / "less.csv").write_text("a;b\n1;2\n")
    assert "there is no column c" in ran(done.args[4], str(project / "less.csv"), cwd=tmp_path).stderr


def test_a_file_reads_what_lightkit_reads(
    cli: Cli, train: Callable[..., None], project: Path, ran_here: Callable[..., tuple[str, str]]
) -> None:
    (project / "rows.csv").write_text("a,kind\n" + "".join(f"{n},{'no' if n < 30 else 'yes'}\n" for n in range(60)))
    words = ["data.dataset.path=rows.csv", "data.dataset.target=kind", "data.dataset.task=binary"]
    train("data=csv", *words, "data.dataset.missing=mean", "loss=bce_with_logits", "metrics=binary")
    script = export("last", "model.pt2").files[1]
    new = project / "new.csv"
    new.write_text("\ufeff a ,id\n1,x\n\ninf,y\n,z\n-2e3,u\n", encoding="utf-8")
    done = cli("predict", "last", "--input", "new.csv", "--output", "-", "--proba")
    assert done.code == 0, done.err
    wanted = [*csv.DictReader(done.out.splitlines())]
    wrong = {
        "": "there is no column",
        "a,b\n1\n": "line 2: 1 cells, not 2",
        "a\n1e39\n": "too large",
        "a,a\n1,2\n": "twice",
    }
    for number, text in enumerate(wrong):
        (project / f"{number}.csv").write_text(text)
    given = [str(new), *(str(project / f"{number}.csv") for number in range(4)), "none.csv"]
    out, err = ran_here(project / script, *given)
    found = [*csv.DictReader(out.splitlines())]
    assert [row["prediction"] for row in found] == [row["prediction"] for row in wanted]
    assert [float(row["p"]) for row in found] == pytest.approx([float(row["p"]) for row in wanted], abs=1e-6)
    *told, last = err.splitlines()
    assert [one for one, line in zip(wrong.values(), told, strict=True) if one not in line] == [], err
    assert last.startswith("none.csv cannot be read")


@pytest.mark.thorough(first=0)
def test_bytes_of_images_stand_for_numbers_from_0_to_1(train: Callable[..., None], project: Path) -> None:
    train(
        "data=shapes",
        "data.dataset.train=60",
        "data.dataset.val=20",
        "data.dataset.test=20",
        "data.dataset.size=8",
        "model=mlp",
    )
    levels = torch.randint(256, (3, *lightkit.load("last").info.input_shape), dtype=torch.uint8)
    for name in ("model.pt2", "model.onnx"):
        found = runpy.run_path(str(project / export("last", name).files[-1]))["predict"]
        assert found(levels.numpy()) == pytest.approx(lightkit.load("last").predict_proba(levels), abs=1e-5)
        assert found(levels.numpy() / 255.0) == pytest.approx(lightkit.load("last").predict_proba(levels), abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (["data=diabetes", "ensemble=gradient_boosting", "ensemble.size=2"], "pt2"),
        (["data=wine", "ensemble=voting", "ensemble.size=2", "ensemble.vote=hard"], "onnx"),
        (["data=wine", "ensemble=bagging", "ensemble.size=11"], "pt2"),
        (["data=wine", "ensemble=stacking"], "pt2"),
        (["data=wine", "ensemble=voting", "ensemble.size=2", "model=tabm"], "onnx"),
        (["data=wine", "ensemble=fusion", "ensemble.size=2"], "onnx"),
        (["data=digits", "model=cnn"], "onnx"),
        (["data=digits_multilabel", "model=transformer"], "onnx"),
        (["data=wine", "model=soft_tree"], "onnx"),
        (["data=wine", "finetune=lora", "finetune.lora.impl=wrap"], "onnx"),
        (["data=text", "model=lstm_lm", "trainer.smoke=true"], "onnx"),
    ],
)
def test_networks_and_ensembles_predict_as_the_run_does(
    train: Callable[..., None], project: Path, words: Sequence[str], ending: str
) -> None:
    train(*words)
    done = export("last", f"model.{ending}")
    assert done.difference <= 1e-4
    assert done.rows > 1
    assert {path.name for path in done.files} == {f"model.{ending}", f"predict_model_{ending}.py"} == left(project)


def test_values_are_in_their_own_unit_and_a_batch_has_any_size(
    cli: Cli, train: Callable[..., None], project: Path
) -> None:
    (project / "rows.csv").write_text("a,y\n" + "".join(f"{n},{n * 3000 + 0.5}\n" for n in range(40)))
    train(
        "data=csv",
        "data.dataset.path=rows.csv",
        "data.dataset.target=y",
        "data.dataset.target_scale=10000",
        "loss=mse",
        "metrics=regression",
    )
    assert cli("predict", "last", "--output", "all.csv").code == 0
    model = torch.export.load(program.write_program("last", "model.pt2")).module()
    rows = predicted((project / "all.csv").read_text())
    inputs = torch.tensor([[float(row[0])] for row in rows])
    expected = torch.tensor([float(row[2]) for row in rows])
    torch.testing.assert_close(model(inputs)[:, 0], expected, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(model(inputs[:1])[:, 0], expected[:1], rtol=1e-4, atol=1e-2)
    assert left(project) == {"rows.csv", "all.csv", "model.pt2"}


@pytest.mark.thorough(first=0)
def test_a_model_of_hugging_face_is_a_folder_with_its_lora_merged(train: Callable[..., None], project: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tests.finetune.peft.test_transformers import overrides

    train(*overrides("BertForSequenceClassification", "finetune=lora", "finetune.lora.match=[@linear]"))
    done = export("last", "bert")
    assert [path.name for path in done.files] == ["config.json", "model.safetensors", "predict.py"]
    assert json.loads((project / "bert/config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(project / "bert")
    assert loaded.num_labels == 3
    assert not any("lora" in name for name in read_weights(project / "bert").state)
    assert export("last", "bert.pt2").difference <= 1e-4
    with pytest.raises(UserError, match=r"there is such a file already\n .*--overwrite"):
        export("last", "bert")
    assert export("last", "bert", overwrite=True).files == done.files


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("Deciding", "m.pt2", [r"body\.1: this part of the network \(Deciding\) .* data-dependent", r"torch\.where"]),
        ("Counting", "m.onnx", [r"body\.1: .*\(Counting\)", r"x\.shape\[0\] in place of len\(x\)"]),
        ("Singular", "m.onnx", [r"body\.1: .*\(Singular\).* No ONNX function .*_linalg_svd", "--to model"]),
        ("Singular", "m", ["only a network with `save_pretrained`", r"nets\.Net"]),
    ],
)
def test_what_cannot_leave_is_told_by_its_module(
    cli: Cli, train: Callable[..., None], project: Path, kind: str, name: str, told: Sequence[str]
) -> None:
    (project / "nets.py").write_text(_NETS)
    train("data=wine", "model=custom", "model._target_=nets.Net", f"model.kind={kind}")
    done = cli("export", "last", name)
    assert (done.code, done.out) == (2, "")
    for part in told:
        assert re.search(part, done.err), done.err
    assert "Traceback" not in done.err
    assert left(project) == set()


def test_what_is_wrong_leaves_nothing_and_files_stay(
    cli: Cli, train: Callable[..., None], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("data=wine")
    mistakes = {
        ("model.tflite",): ["no such form", "choices:  .pt2, .onnx"],
        ("none/model.pt2",): ["cannot write: No such file"],
        ("model.pt2", "--tolerance", "-1"): ["--tolerance: not a difference"],
        ("model.pt2", "--checkpoint", "none.pt"): ["no such checkpoint"],
        ("model.pt2", "--members", "00"): ["only an ensemble has members"],
        (): ["FILE is missing"],
    }
    for words, told in mistakes.items():
        done = cli("export", "last", *words)
        assert done.code == 2
        assert all(part in done.err for part in told), done.err
    with monkeypatch.context() as patch:
        patch.setattr(program, "find_spec", lambda name: None if name == "onnxscript" else name)
        done = cli("export", "last", "model.onnx")
        assert (done.code, "onnxscript not installed" in done.err, "'lightkit[onnx]'" in done.err) == (2, True, True)
    (project / "conf").mkdir()
    (project / "conf/plugins.yaml").write_text("export: {lie: liars.Liar, bad: liars.Empty}\n")
    (project / "liars.py").write_text(_LIARS)
    with pytest.raises(UserError, match=r"predicts something else than the run: the largest difference is 0\.\d"):
        export("last", "model.lie")
    with pytest.raises(UserError, match="cannot be loaded again"):
        export("last", "model.bad")
    assert left(project) == {"conf"}
    (project / "model.pt2").write_text("mine")
    done = cli("export", "last", "model.pt2")
    assert (done.code, "there is such a file already" in done.err) == (2, True)
    assert (project / "model.pt2").read_text() == "mine"
    done = cli("export", "last", "model.pt2", "--overwrite", "--json")
    found: dict[str, Any] = json.loads(done.out)
    assert found["files"] == ["model.pt2", "predict_model_pt2.py"]
    assert (found["rows"], found["tolerance"]) == (128, 1e-4)
    assert math.isfinite(found["difference"])
