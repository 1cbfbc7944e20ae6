"""The shape of the code: layers, who may import what, sizes, and a test folder for every part."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lightkit"
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]

LAYERS = (
    {"common"},
    {"processes"},
    {"monitor"},
    {"data", "models", "losses", "optim", "device", "finetune", "metrics", "checkpoint", "loggers"},
    {"diagnostics"},
    {"trainer"},
    {"ensemble"},
    {"config"},
    {"runs"},
    {"assembly"},
    {"finders"},
    {"runner", "sweep", "compare"},
    {"detached", "doctor", "gallery", "sklearn"},
    {"cli"},
    {"__main__", "__init__"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

# Third-party package: the places that may import it.
ONLY_IN = {
    "hydra": ("lightkit/config/", "lightkit/sweep/"),
    "omegaconf": tuple(
        f"lightkit/{part}/"
        for part in ("config", "runs", "assembly", "finders", "runner", "sweep", "detached", "doctor", "gallery", "cli")
    ),
    "torchensemble": ("lightkit/ensemble/bridge.py",),
    "tensorboard": ("lightkit/loggers/", "lightkit/detached/tensorboard.py"),
    "rich": ("lightkit/loggers/",),
    "torchvision": ("lightkit/data/", "lightkit/models/"),
    "timm": ("lightkit/models/",),
    "torchinfo": ("lightkit/diagnostics/",),
    "torchview": ("lightkit/diagnostics/",),
    "graphviz": ("lightkit/diagnostics/",),
    "peft": ("lightkit/finetune/peft/peft_bridge.py",),
    "matplotlib": (
        "lightkit/metrics/",
        "lightkit/loggers/",
        "lightkit/compare/",
        "lightkit/finders/",
        "lightkit/gallery/",
        "lightkit/diagnostics/",
        "lightkit/common/drawing.py",
        "lightkit/sweep/study.py",
    ),
    "jinja2": ("lightkit/common/drawing.py",),
    "pynvml": ("lightkit/monitor/nvml.py",),
    "psutil": ("lightkit/monitor/", "lightkit/diagnostics/", "lightkit/doctor/"),
    "pyarrow": (
        "lightkit/data/csv_columns.py",
        "lightkit/data/csv_reader.py",
        "lightkit/data/table_sources.py",
        "lightkit/data/streams.py",
        "lightkit/data/table_cache.py",
    ),
}
NEVER_IN = {
    "torch": ("lightkit/cli/", "lightkit/config/", "lightkit/compare/"),
    "lightning": ("lightkit/",),
}
BUDGETS = {
    "config": 6900,
    "runner": 6600,
    "doctor": 4250,
    "cli": 4700,
    "data": 6600,
    "ensemble": 3460,
    "sweep": 3050,
    "finetune": 2750,
    "trainer": 3150,
    "checkpoint": 2300,
    "assembly": 2050,
    "device": 1700,
    "common": 1950,
    "metrics": 1700,
    "diagnostics": 1500,
    "loggers": 1915,
    "runs": 1850,
    "optim": 1250,
    "detached": 1150,
    "compare": 975,
    "monitor": 850,
    "models": 950,
    "finders": 675,
    "gallery": 900,
    "processes": 350,
    "losses": 150,
    "sklearn": 150,
}
"""Lines of code that a room may have, without docstrings, comments and blank lines: growth is argued for in a diff."""
MECHANISMS = {
    r"\bsubprocess\b(?!`)": """
        processes/children
        processes/guard
    """,
    r"\bos\.fork\(": """
        processes/forks
    """,
    r"\bfcntl\b": """
        processes/files
    """,
    r"\.replace\((self\.)?_?(path|target|folder / |run / )|os\.replace\(|mkstemp\(": """
        processes/files
    """,
    r"yaml\.(safe_)?load\(": """
        cli/config
        common/reading
        config/describe
        config/origins
        config/pages
    """,
    r"\bFigure\(figsize": """
        common/drawing
    """,
}
"""Mechanisms, and the only places that may have them: a further one uses what is there."""
TERMINAL = ("lightkit/cli/", "lightkit/loggers/console.py")
"""The places that may print."""
SLACK = 150
"""Lines by which a budget may lie above what is there."""
TEXT = (ast.Constant, ast.JoinedStr)
TEST = re.compile(r"^(    )?(async )?def test_", re.M)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All that is in a file, inside functions too."""
    return [*ast.walk(tree(path))]


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(found: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that any of these nodes imports."""
    for child in found:
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"relative import in line {child.lineno}"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)


def without_type_checking(node: ast.Module) -> list[ast.stmt]:
    """The statements that run on import."""
    kept = []
    for child in node.body:
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not guarded and not isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            kept.append(child)
    return kept


def test_every_part_has_a_layer() -> None:
    assert {part_of(path) for path in FILES} <= set(LEVEL)


def test_imports_go_down_only() -> None:
    assert not [f"{name}: {part}" for path, name in zip(FILES, NAMES) for part in _not_below(path)]


def _not_below(path: Path) -> list[str]:
    """The parts a file imports that are not below its own."""
    mine = part_of(path)
    parts = {name.split(".")[1] for name in imports(nodes(path)) if name.startswith("lightkit.")}
    return sorted(part for part in parts - {mine, "__version__"} if LEVEL[part] >= LEVEL[mine])


def test_third_party_packages_stay_in_their_place() -> None:
    found = [(name, {dotted.split(".")[0] for dotted in imports(nodes(path))}) for path, name in zip(FILES, NAMES)]
    assert not [
        f"{package} in {name}"
        for name, packages in found
        for package in packages
        if not name.startswith(ONLY_IN.get(package, ("lightkit/",))) or name.startswith(NEVER_IN.get(package, ("\0",)))
    ]


def test_no_import_cycles() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    edges = {name: _module_edges(name, path, modules) for name, path in modules.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in edges[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in modules:
        visit(name, ())


def _module_edges(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    found = {dotted for stmt in without_type_checking(tree(path)) for dotted in imports(ast.walk(stmt))}
    targets = {dotted if dotted in modules else dotted.rpartition(".")[0] for dotted in found}
    # `import lightkit` runs nothing but the lazy table of names.
    return {target for target in targets if target in modules and target not in (name, "lightkit")}


def test_annotations_are_not_evaluated() -> None:
    defining = [
        path for path in FILES if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree(path).body)
    ]
    line = "from __future__ import annotations"
    assert not [path for path in defining if line not in path.read_text(encoding="utf-8")]


def test_print_belongs_to_the_terminal() -> None:
    others = [path for path, name in zip(FILES, NAMES) if not name.startswith(TERMINAL)]
    calls = [(path, node) for path in others for node in nodes(path) if isinstance(node, ast.Call)]
    assert not [
        f"{path}:{node.lineno}" for path, node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def test_checkpoint_files_are_opened_in_one_place() -> None:
    for path in FILES:
        if part_of(path) != "checkpoint":
            assert not re.search(r"\btorch\.(save|load)\(", path.read_text(encoding="utf-8")), path


def test_nothing_changes_the_working_directory() -> None:
    for path in FILES:
        assert "os.chdir(" not in path.read_text(encoding="utf-8"), path


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, list[str]]]:
    for path, name in zip(FILES, NAMES):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}:{node.lineno} {node.name}", node, lines


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Code lines of a function without signature, docstring, comments and blank lines."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    text = lines[body[0].lineno - 1 : body[-1].end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text)


def nesting(node: ast.AST) -> int:
    """Depth of control flow below `node`; `elif`, `with` and nested functions do not count as deeper."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        is_block = isinstance(child, ast.If | ast.For | ast.While | ast.Try) and not is_elif
        deepest = max(deepest, nesting(child) + is_block)
    return deepest


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def code_lines(path: Path) -> int:
    """Count lines without docstrings, comments and blank ones."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    code, docs = {number for number, line in lines if line.strip() and line.strip()[0] != "#"}, set[int]()
    for node in nodes(path):
        if isinstance(node, TEXT) and node.end_lineno != node.lineno:
            code |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}  # whatever its lines look like
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(code - docs)


def test_rooms_keep_to_their_budgets() -> None:
    sizes = Counter[str]()
    for path in FILES:
        sizes[part_of(path)] += code_lines(path)
    assert not {room: size for room, size in sizes.items() if size > BUDGETS.get(room, 40)}
    assert not {room: budget for room, budget in BUDGETS.items() if sizes[room] < budget - SLACK}, "lower these budgets"


@pytest.mark.parametrize("pattern", MECHANISMS)
def test_a_mechanism_stands_where_it_stood(pattern: str) -> None:
    where = {name for path, name in zip(FILES, NAMES) if re.search(pattern, path.read_text(encoding="utf-8"))}
    assert where == {f"lightkit/{name}.py" for name in MECHANISMS[pattern].split()}


def test_function_bodies_are_short() -> None:
    sizes = {name: body_lines(node, lines) for name, node, lines in functions()}
    assert not {name: size for name, size in sizes.items() if size > 50}
    assert percentile(list(sizes.values()), 0.95) <= 25


def test_control_flow_is_shallow() -> None:
    assert not {name: depth for name, node, _ in functions() if (depth := nesting(node)) > 3}


def test_files_are_short() -> None:
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for path, name in zip(FILES, NAMES)}
    assert not {name: size for name, size in sizes.items() if size > 450}
    assert percentile(list(sizes.values()), 0.95) <= 360


def test_tests_mirror_the_package() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    tests = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert packages - tests == set(), "parts without tests"
    assert tests - packages <= {"resume", "faults", "gpu", "experiments", "benchmarks", "docs"}, "tests of nothing"


def test_every_test_file_is_collected(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--fast"):
        pytest.skip("some folders are left out there")
    written = {path for path in (ROOT / "tests").rglob("*.py") if TEST.search(path.read_text(encoding="utf-8"))}
    assert sorted(written - collected(ROOT / "tests", request.session)) == []


def collected(folder: Path, parent: pytest.Collector) -> set[Path]:
    """The files below a folder in which pytest, as it is configured, looks for tests."""
    node = parent.ihook.pytest_collect_directory(path=folder, parent=parent)
    found: set[Path] = set()
    for child in node.collect():
        found |= collected(child.path, node) if isinstance(child, pytest.Directory) else {child.path}
    return found
