"""A table is judged as a whole, before PyTorch is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common.errors import UserError, UserErrors
from lightkit.data.csv_file import csv
from tests.conftest import Outcome

HEADER = "id,income,born,height,part,kind"


def bad_table(folder: Path) -> None:
    cells = (f'p{row:04d},"{row},5",2020-01-{row % 28 + 1:02d}' for row in range(40))
    rows = [
        f"{row},{'' if i == 3 else i * i},{'tset' if i == 5 else 'train'},{'ab'[i % 2]}" for i, row in enumerate(cells)
    ]
    (folder / "t.csv").write_text("\n".join([HEADER, *rows, "1,2", "3"]) + "\n")


SAID = (
    "line 42: 2 cells, not 6; 1 more line is uneven (line 43)",
    "line 5: column 'height' has no value",
    "column 'id' holds another text in nearly every row",
    "column 'income' holds numbers with a decimal comma",
    "column 'born' holds dates or times",
    "line 7: not a split",
    "no such column",
)


def test_all_problems_of_a_table_are_in_one_report(tmp_path: Path) -> None:
    bad_table(tmp_path)
    columns = ["id", "income", "born", "height", "weight"]
    with pytest.raises(UserErrors) as caught:
        csv(str(tmp_path / "t.csv"), "kind", columns, split_column="part")
    assert len(caught.value.errors) == len(SAID)
    assert all(said in str(caught.value) for said in SAID)


def test_the_command_tells_them_with_the_mistakes_of_the_configuration(
    cli: Callable[..., Outcome], project: Path
) -> None:
    bad_table(project)
    settings = ("data=csv", "data.dataset.path=t.csv", "data.dataset.target=kind", "data.dataset.split_column=part")
    columns = "data.dataset.features=[id,income,born,height,weight]"
    done = cli("train", *settings, columns, "optim.lrr=1")
    assert done.code == 2
    assert all(said in done.err for said in (*SAID, "optim.lrr: ", f"{len(SAID) + 1} problems found"))
    assert not (project / "outputs").exists()


def test_names_may_be_the_target_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("width,kind\n1,a\n2,b\n")
    with pytest.raises(UserError, match=r"target: .*no such column") as caught:
        csv(str(tmp_path / "t.csv"), "sort")
    assert not isinstance(caught.value, UserErrors)


def test_a_table_is_judged_without_torch(tmp_path: Path) -> None:
    bad_table(tmp_path)
    asked = f"TableSpec({str(tmp_path / 't.csv')!r}, 'kind', split_column='part')"
    code = f"""
import sys
from lightkit.common.errors import Problems
from lightkit.data.csv_table import TableSpec, read_tables
problems = Problems()
with problems.noted():
    read_tables({asked})
print(len(problems), 'torch' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(SAID) - 1), "False"]
