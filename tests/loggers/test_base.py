from __future__ import annotations

import subprocess
import sys

import pytest

from lightkit.loggers import Logger, Loggers, Progress

CALLS = {
    "start": ((3, ()), {}),
    "scalars": (({"a": 1.0},), {"step": 1, "epoch": 0}),
    "hparams": (({"lr": 1}, ["lr=1"]), {}),
    "end": (("finished",), {}),
    "figure": (("f", None), {"step": 1}),
    "text": (("t", "*x*"), {"step": 1}),
    "images": (("i", None), {"step": 1}),
    "histogram": (("h", None), {"step": 1}),
    "graph": ((None, None), {}),
    "progress": ((Progress(1, 2, 3, 4, 5, 6),), {}),
    "message": (("hello",), {}),
    "table": (("t", ["a"], [("1",)]), {}),
    "flush": ((), {}),
    "sync": ((), {}),
    "close": ((), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_fan_out_reaches_every_logger_in_order(name):
    seen = []

    class Spy(Logger):
        def __init__(self, tag):
            self.tag = tag

    def note(self, *args, **kwargs):
        seen.append((self.tag, args, kwargs))

    setattr(Spy, name, note)
    args, kwargs = CALLS[name]
    getattr(Loggers([Spy("a"), Logger(), Spy("b")]), name)(*args, **kwargs)
    assert seen == [("a", args, kwargs), ("b", args, kwargs)]


def test_every_method_of_the_interface_is_fanned_out():
    methods = {name for name, member in vars(Logger).items() if callable(member) and not name.startswith("_")}
    assert methods == set(CALLS)
    assert methods <= set(vars(Loggers))


def test_rows_given_as_a_generator_reach_all():
    seen = []

    class Spy(Logger):
        def table(self, title, columns, rows):
            seen.append(list(rows))

    Loggers([Spy(), Spy()]).table("t", ["a"], (("1",) for _ in range(2)))
    assert seen == [[("1",), ("1",)]] * 2


def test_close_closes_all_and_then_raises():
    closed = []

    class Broken(Logger):
        def close(self):
            raise OSError("disk full")

    class Fine(Logger):
        def close(self):
            closed.append(1)

    with pytest.raises(OSError, match="disk full"):
        Loggers([Broken(), Fine()]).close()
    assert closed == [1]


def test_import_is_light():
    code = (
        "import sys, lightkit.loggers;"
        "assert not {'torch', 'tensorboard', 'rich', 'matplotlib', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
