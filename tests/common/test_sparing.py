"""Importing torchmetrics in parts: the same values, and the whole package for whoever asks for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_SECONDS = 300
VALUES = Path(__file__).with_name("metric_values.py")
IN_PARTS = "from lightkit.common.sparing import sparingly\nfrom importlib import import_module\n"
TAKEN = "sparingly(lambda: import_module('torchmetrics.classification').MulticlassAccuracy(3))\n"


def child(*arguments: str, cwd: Path | None = None) -> str:
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, cwd=cwd)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.thorough(first=0)
def test_metrics_that_come_in_parts_give_the_values_of_the_whole_package():
    plain = json.loads(child(str(VALUES), "plain"))["values"]
    in_parts = json.loads(child(str(VALUES), "parts", *plain))
    assert len(plain) >= 130
    assert in_parts == {"values": plain, "heavy": []}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import importlib as i, torchmetrics as t; i.invalidate_caches(); print(t.SumMetric.__name__)", "SumMetric"),
        ("import importlib; importlib.invalidate_caches(); print('well')", "well"),
        ("import torchmetrics; print(torchmetrics.functional.accuracy.__name__)", "accuracy"),
        ("from torchmetrics.functional.classification import accuracy; print(callable(accuracy))", "True"),
        ("import torchmetrics; print(torchmetrics.image.SpectralAngleMapper.__name__)", "SpectralAngleMapper"),
        ("import torchmetrics.text; print(torchmetrics.text.BERTScore.__name__)", "BERTScore"),
        ("import torchmetrics; print('Accuracy' in dir(torchmetrics), 'F1Score' in vars(torchmetrics))", "True True"),
        ("from torchmetrics import *; print(Accuracy.__module__)", "torchmetrics.classification.accuracy"),
        ("import torchmetrics\ntry: torchmetrics.nothing\nexcept AttributeError as error: print(error)",
         "module 'torchmetrics' has no attribute 'nothing'"),
        ("from torchmetrics import MeanMetric as M; m = M(); m.update(1); print(type(m.plot()[0]).__name__)", "Figure"),
        ("from torchmetrics.utilities.plot import _AX_TYPE; print(_AX_TYPE.__name__)", "Axes"),
        ("from lightning import Trainer; import torchmetrics; print(torchmetrics.MetricCollection.__name__)",
         "MetricCollection"),
    ],
)  # fmt: skip
@pytest.mark.thorough(first=1)
def test_the_rest_is_there_for_who_asks(code: str, expected: str):
    assert child("-c", IN_PARTS + TAKEN + code).strip() == expected


@pytest.mark.parametrize("root", ["from torchmetrics.a import A\n", "B = missing\n"])
def test_what_does_not_come_in_parts_comes_whole(tmp_path: Path, root: str):
    home = tmp_path / "torchmetrics"
    home.mkdir()
    (home / "__init__.py").write_text("class missing: pass\n" + root + "from torchmetrics.b import B\n")
    (home / "a.py").write_text("class A: pass\nfrom torchmetrics.b import B\n" if "A" in root else "class A: pass\n")
    (home / "b.py").write_text("from torchmetrics.a import A\nclass B: pass\n")
    code = f"{IN_PARTS}import sys; sys.path.insert(0, '')\n"
    code += "print(sparingly(lambda: import_module('torchmetrics.b').B).__name__)"
    assert child("-c", code, cwd=tmp_path).strip() == "B"


def test_an_error_of_the_caller_is_not_tried_again():
    code = "calls = []\ndef make():\n    calls.append(1)\n    raise ValueError\n"
    code += "try: sparingly(make)\nexcept ValueError: print(len(calls))"
    assert child("-c", IN_PARTS + code).strip() == "1"
