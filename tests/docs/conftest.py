"""What the pages run in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Terminal, check_page, make_tools
from tests.warm import Warm

CheckPage = Callable[[str], None]


@pytest.fixture(scope="module")
def tools(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for the `bin/` of an environment."""
    return make_tools(warm, tmp_path_factory.mktemp("venv"))


@pytest.fixture
def check(tools: Path, tmp_path: Path, request: pytest.FixtureRequest) -> CheckPage:
    """`check("docs/guides/resume.md")` runs a page."""
    rewrite = bool(request.config.getoption("--rewrite"))
    return lambda page: check_page(ROOT / page, Terminal(tmp_path, tools), rewrite=rewrite)
