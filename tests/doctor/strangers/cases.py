"""What a case is: a tiny project that somebody may bring, the command that examines it, and what must be told of it.

The cases are written from what goes wrong in real projects, not from what the doctor looks at.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

PRELUDE = '''\
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from lightkit.data import DataInfo
from lightkit.trainer import StepOutput, Task

def generator(seed=0):
    return torch.Generator().manual_seed(seed)

def blobs(rows=300, classes=3, features=8, gap=1.5):
    """Clouds of points, one a class."""
    g = generator()
    y = torch.randint(classes, (rows,), generator=g)
    centres = torch.randn(classes, features, generator=g) * gap
    return centres[y] + torch.randn(rows, features, generator=g), y

def curve(rows=300, features=6):
    """Numbers that bend with their inputs, with a deviation of about 1."""
    g = generator()
    x = torch.randn(rows, features, generator=g)
    return x, x[:, 0] + x[:, 1].sin() + 0.1 * torch.randn(rows, generator=g)

def bars(rows=300, size=12, channels=1):
    """Pictures from 0 to 1 of a bar that lies, stands or leans, somewhere."""
    g = generator()
    y, at = torch.randint(3, (rows,), generator=g), torch.randint(2, size - 2, (rows,), generator=g)
    x = torch.rand(rows, channels, size, size, generator=g) * 0.4
    for row in range(rows):
        if y[row] == 0:
            x[row, :, at[row]] += 0.6
        elif y[row] == 1:
            x[row, :, :, at[row]] += 0.6
        else:
            x[row] += 0.6 * torch.eye(size).roll(int(at[row]), 1)
    return x, y

def mlp(inputs, outputs, width=32):
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))

'''
PARTS = {
    "data": "data=custom data.dataset._target_=planted.data",
    "Net": "model=custom model._target_=planted.Net",
    "Loss": "loss=custom loss._target_=planted.Loss",
    "Step": "trainer.task._target_=planted.Step",
    "Optim": "optim=custom optim._target_=planted.Optim",
}
"""Overrides that a name of the module stands for."""
SEVERITY = ("ok", "skipped", "note", "warning", "error")


@dataclass(frozen=True)
class Case:
    """A project and what a reader must be told of it.

    Args:
        name: What is wrong with it, or what is unusual in it.
        module: Text of its module `planted`, below `PRELUDE`. What `PARTS` names is used.
        overrides: Further words of the command.
        expects: Regular expression that one finding must match, of what names the true cause; "" where all is well.
        severity: The least that this finding must be.
        tolerates: Checks whose warnings are a fair remark on a healthy project.
    """

    name: str
    module: str = ""
    overrides: str = ""
    expects: str = ""
    severity: str = "warning"
    tolerates: tuple[str, ...] = ()

    def write(self, folder: Path) -> list[str]:
        """Write the project into `folder` and return the overrides that use it."""
        (folder / "experiments").mkdir(parents=True, exist_ok=True)
        (folder / "planted.py").write_text(PRELUDE + self.module, encoding="utf-8")
        parts = [words for part, words in PARTS.items() if re.search(rf"^(def|class) {part}\b", self.module, re.M)]
        return shlex.split(" ".join([*parts, self.overrides]))

    def findings(self, code: int, out: str, err: str) -> list[tuple[str, str, str]]:
        """Status, check and text of all that was told; a refusal is an error."""
        start = out.find("{\n")
        listed: list[dict[str, Any]] = json.loads(out[start:])["findings"] if start >= 0 else []
        texts = [(each["status"], each["check"], _text(each)) for each in listed]
        return texts + ([("error", "refused", " ".join((out[:start] + err).split()))] if code == 2 else [])

    def judge(self, code: int, out: str, err: str) -> tuple[bool, list[str]]:
        """Return whether the judgement is right, and the warnings and errors that were told."""
        findings = self.findings(code, out, err)
        loud = [each for each in findings if SEVERITY.index(each[0]) >= SEVERITY.index("warning")]
        told = [f"{status}: {check}: {text}" for status, check, text in loud]
        if not self.expects:
            return code == 0 and all(each[1] in self.tolerates for each in loud), told
        least = SEVERITY.index(self.severity)
        matching = [each for each in findings if re.search(self.expects, f"{each[1]}: {each[2]}", re.I | re.S)]
        return any(SEVERITY.index(status) >= least for status, _, _ in matching), told


def _text(finding: dict[str, Any]) -> str:
    return " ".join(" ".join(str(finding[key]) for key in ("measured", "why", "key", "fix")).split())


def read(text: str, expressions: Mapping[str, str] = MappingProxyType({})) -> list[Case]:
    """Read cases, each of which begins with `=== NAME $ OVERRIDES`.

    Further lines may begin with `$` for more overrides, with the severity for what is expected (an expression, or the
    name of one; several are alternatives), and with `tolerates:`; the others are its module.
    """
    cases = list[Case]()
    for part in text.split("=== ")[1:]:
        name, *lines = [line for line in part.splitlines() if line and not line.startswith("# ")]
        name, _, overrides = name.partition(" $ ")
        expects, severity, tolerates, module = list[str](), "warning", "", list[str]()
        for line in lines:
            head, _, rest = line.partition(": ")
            if line.startswith("$ "):
                overrides = f"{overrides} {line[2:]}".strip()
            elif head in SEVERITY:
                severity, expects = head, [*expects, expressions.get(rest, rest)]
            elif head == "tolerates":
                tolerates = rest
            else:
                module.append(line + "\n")
        cases.append(Case(name, "".join(module), overrides, "|".join(expects), severity, (tolerates,)))
    return cases
