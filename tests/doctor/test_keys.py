"""What the doctor tells people to type is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from omegaconf import OmegaConf

from lightkit.config import compose

GROUPS = "trainer|data|device|optim|checkpoint|metrics|scheduler|finetune|logger"
KEY = re.compile(rf"(?<![\w./])(?:{GROUPS})\.[a-z_]+(?:\.[a-z_]+)*(?![\w(.])")
MISSING = object()
ARGUMENTS = {"optim.maximize"}
"""Keys of arguments that a file of `conf/` leaves at their defaults."""


def texts(folder: Path) -> list[str]:
    """The strings of all modules, without what stands inside of `{}`."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_keys_exist(project: Path, root: Path) -> None:
    (project / "own.csv").write_text("a,y\n1,0\n2,1\n")
    csv = ["data=csv", "data.dataset.path=own.csv", "data.dataset.target=y"]
    images = ["data=image_folder", "data.dataset.root=."]
    found = [compose(each).cfg for each in ([], ["data=diabetes"], csv, images, ["data=shapes"], ["finetune=head"])]
    written = texts(root / "lightkit" / "doctor")
    keys = {key for text in written for key in KEY.findall(text)} - ARGUMENTS

    assert len(keys) > 20
    assert {
        key for key in keys if all(OmegaConf.select(cfg, key, default=MISSING) is MISSING for cfg in found)
    } == set()
