"""Sources of installed packages are read in outline, which tells the same as all of them."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightkit.config import modules
from lightkit.config.modules import Module

AWKWARD = '''
"""Text.

def not_one(): of the module
"""
@decorated(
    1,
)
class First(Base):
    """Has text at the margin:
def neither(): ...
    """

    def f(self): return """
class Nor: pass
"""
def second(
    a, b=(1,
    2)
):
    # a comment
# at the margin
    return a

if True:
    def third(): ...
async def fourth(): pass
NAMES = ["a",
"b"]
'''


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_OF_OTHERS", tmp_path.parts[-1:])
    monkeypatch.setattr(modules, "ast", ast)  # not what other tests share


def read(file: Path) -> tuple[Module, bool]:
    """Read a file in outline, then all that is in it; tell whether that was done in two steps."""
    module = Module("x.y", file)
    if not modules._outline(module, file.read_bytes()):
        return module, False
    for node in list(module.sources):
        assert not isinstance(node, ast.ClassDef) or isinstance(node.body[0], ast.Pass) or not node.bases
        modules.fill_in(module, node)
    return module, True


def dumped(body: list[ast.stmt]) -> str:
    return ast.dump(ast.Module(body, []))


@pytest.mark.parametrize(
    "name", ["torch.nn.modules.activation", "torch.optim.adam", "torchmetrics.metric", "torch.nn.functional"]
)
def test_an_outline_that_is_filled_in_is_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin)
    monkeypatch.setattr(modules, "_OF_OTHERS", file.parts[-1:])
    module, in_steps = read(file)
    assert in_steps
    assert dumped(module.body) == dumped(ast.parse(file.read_bytes()).body)


def test_text_that_looks_like_code_is_parsed_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(AWKWARD)
    assert not read(file)[1]
    plain = AWKWARD.replace("\ndef ", "\n def ").replace("\n def second", "\ndef second")
    file.write_text(plain.replace('return """\nclass Nor: pass\n"""', "..."))
    module, in_steps = read(file)
    assert in_steps
    assert dumped(module.body) == dumped(ast.parse(file.read_bytes()).body)


def test_a_mistake_in_a_file_of_the_users_own_is_found_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path.parent / "own.py"
    file.write_text("def f():\n    return 1 +\n\n\nclass A: pass\n")
    assert not read(file)[1]
