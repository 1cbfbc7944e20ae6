from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest

from lightkit.config.signatures import TargetError, clear, read

CODE = {
    "pack/__init__.py": "from pack.base import Base as Base\nfrom .stars import *\nfrom . import deep\nALIAS = Base\n",
    "pack/base.py": """\
from __future__ import annotations
from typing import Any, Literal, Optional, Sequence, Union, overload
from dataclasses import dataclass, field
from enum import Enum
from typing_extensions import dataclass_transform

class Base:
    def __init__(self, width: int, name: str = "a", *, flag: bool = False, **kwargs: Any) -> None:
        self.a = kwargs.pop("alpha", 1)
        if kwargs:
            raise ValueError(kwargs)

    @classmethod
    def make(cls, width: int): ...

    @staticmethod
    def plain(height: int): ...

    def method(self, x): ...

class Child(Base):
    def __init__(self, depth: int, **kwargs: Any) -> None:
        super().__init__(3, **kwargs)

class Grandchild(Child):
    pass

class Open:
    def __init__(self, a, **kwargs): ...

class New:
    def __new__(cls, a): ...

class Colour(Enum):
    RED = 1

@dataclass
class Record:
    x: int
    y: list[int] = field(default_factory=list)
    z: str = "z"
    hidden: int = field(init=False, default=0)

@dataclass
class More(Record):
    w: float = 1.0

@dataclass_transform()
class Making:
    def __init_subclass__(cls) -> None:
        dataclass(cls)

class Made(Making):
    u: int = 0

class MadeOfThat(Made):
    v: int = 0

class Nothing:
    pass

def types(a: int, b: Optional[float], c: "str | None", d: Literal["x", "y"], e: Union[int, list[str]],
          f: Sequence[int], g: dict[str, int], h: "Tensor", i: Unknown, j: tuple[int, ...], k: int = None, *args): ...

def position(a, /, b, *, c=1): ...

@overload
def over(a: int): ...
def over(a, b=2): ...

try:
    from nowhere import fallback
except ImportError:
    fallback = None

if True:
    def branch(a): ...
else:
    def branch(b): ...
""",
    "pack/stars.py": "__all__ = ['starred']\ndef starred(a): ...\ndef not_exported(b): ...\n",
    "pack/deep/__init__.py": "",
    "pack/deep/leaf.py": "from ..base import Base\nclass Leaf(Base): ...\n",
    "lazy/__init__.py": "_HOME = {'Base': 'pack.base', 'Local': 'local'}\ndef __getattr__(name): ...\n",
    "lazy/local.py": "class Local:\n    def __init__(self, here): ...\n",
    "dyn.py": "globals().update(a=1)\n",
    "broken.py": "def (:\n",
    "space/inner.py": "def f(a): ...\n",
}


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in CODE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    clear()
    yield
    clear()


def names(target: str) -> list[str]:
    signature = read(target)
    assert signature is not None
    return signature.names()


ARGUMENTS = """
width name flag alpha: pack.Base pack.base.Base pack.ALIAS pack.deep.leaf.Leaf lazy.Base
depth name flag alpha: pack.base.Child pack.base.Grandchild
x y z: pack.base.Record
x y z w: pack.base.More
: pack.base.Nothing
width: pack.Base.make pack.base.Child.make
height: pack.Base.plain
self x: pack.Base.method
a: pack.starred pack.base.branch space.inner.f
b c: pack.base.position
a b: pack.base.over
here: lazy.Local
"""
UNTOLD = "pack.base.New pack.base.Colour pack.base.fallback dyn.whatever math.sqrt builtins.dict lazy.Else"


def test_arguments_are_read(pack: None) -> None:
    for line in ARGUMENTS.strip().splitlines():
        expected, _, targets = line.partition(":")
        for target in targets.split():
            assert names(target) == expected.split(), target
    assert [read(target) for target in UNTOLD.split()] == [None] * 7
    for target, is_open in (("pack.Base", False), ("pack.base.Child", False), ("pack.base.Open", True)):
        signature = read(target)
        assert signature is not None
        assert signature.open is is_open
    made = read("pack.base.MadeOfThat")  # of what a base class makes a data class
    assert made is not None
    assert (made.names(), made.open) == (["u", "v"], True), "it may take more than its fields"


def test_source_that_is_no_python(pack: None) -> None:
    with pytest.raises(TargetError, match=r"broken\.py:1: invalid syntax") as caught:
        read("broken.f")
    assert caught.value.sentence("broken.f").startswith("broken.f can't be read, as its file is no valid Python: ")


MISSING = """
pack.base.Bse ; the module pack.base has no such name ; Bse ; Base
pack.not_exported ; the module pack has no such name ; not_exported ; starred
pack.Base.mak ; the class Base has no method of that name ; mak ; make
pakc.Base ; there is no such module ; pakc ; pack
pack.deep.leef.Leaf ; the module pack.deep has no such name ; leef ; leaf
pack ; a module is not something to build ; pack ;
"""


def test_what_does_not_exist_is_an_error(pack: None) -> None:
    for line in MISSING.strip().splitlines():
        target, what, received, close = f"{line} ".split(" ; ")
        with pytest.raises(TargetError, match=what) as caught:
            read(target)
        assert caught.value.received == received
        assert close.strip() in ("", *caught.value.choices), target


def test_types_are_read(pack: None) -> None:
    signature = read("pack.base.types")
    assert signature is not None
    kinds: dict[str, Any] = {parameter.name: parameter.annotation for parameter in signature.parameters}
    assert kinds["a"] is int
    assert kinds["b"] == Optional[float]
    assert kinds["c"] == Optional[str]
    assert kinds["d"] == Literal["x", "y"]
    assert kinds["f"] == list[int]
    assert kinds["i"] is Any
    assert kinds["j"] == Annotated[list[int], 0]
    assert kinds["k"] == Optional[int]


MODULES = ["torch.optim", "torch.optim.lr_scheduler", "torch.nn"]
MODULES += ["torchmetrics.classification", "torchmetrics.regression"]


def test_source_says_what_inspect_says() -> None:
    checked, wrong = 0, []
    for module in MODULES:
        for name, built in inspect.getmembers(importlib.import_module(module), inspect.isclass):
            signature = None if name.startswith("_") else read(f"{module}.{name}")
            if signature is not None:
                checked += 1
                wrong += [f"{module}.{name}"] if not _agree(signature, inspect.signature(built)) else []
    assert checked > 250
    assert wrong == []


def _agree(mine: Any, real: inspect.Signature) -> bool:
    plain = [item for item in real.parameters.values() if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    takes_rest = any(item.kind is item.VAR_KEYWORD for item in real.parameters.values())
    required = {item.name for item in plain if item.default is item.empty}
    names_agree = (
        {item.name for item in plain} <= set(mine.names()) if takes_rest else {*mine.names()} == {i.name for i in plain}
    )
    return names_agree and required <= {item.name for item in mine.parameters if item.required}
