from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.runner.program import ABOUT, write_program
from tests.conftest import Outcome

Cli = Callable[..., Outcome]


@pytest.mark.slow
def test_the_file_predicts_what_the_run_does(cli: Cli, project: Path) -> None:
    (project / "rows.csv").write_text(
        "a,b,kind\n" + "".join(f"{n % 7},{n * n % 11},{'yes' if n % 7 > 3 else 'no'}\n" for n in range(60))
    )
    words = ["data=csv", "data.dataset.path=rows.csv", "data.dataset.target=kind", "name=rows", "trainer.epochs=2"]
    done = cli("train", *words, "data.dataset.features=[a,b]")
    assert done.code == 0, done.err
    assert cli("predict", "rows", "--output", "all.csv").code == 0
    extra = {ABOUT: ""}
    program = torch.export.load(write_program("rows", project / "model.pt2"), extra_files=extra).module()
    about = json.loads(extra[ABOUT])
    assert (about["task"], about["classes"], about["input_shape"]) == ("multiclass", ["no", "yes"], [2])
    assert about["dataset"]["features"] == ["a", "b"]
    table = [*csv.DictReader((project / "rows.csv").read_text().splitlines())]
    predicted = [*csv.DictReader((project / "all.csv").read_text().splitlines())]
    inputs = torch.tensor([[float(table[int(row["row"])][name]) for name in ("a", "b")] for row in predicted])
    expected = torch.tensor([[float(row["p(no)"]), float(row["p(yes)"])] for row in predicted])
    torch.testing.assert_close(program(inputs), expected)
    torch.testing.assert_close(program(inputs[:1]), expected[:1])
    with pytest.raises(UserError, match="cannot write"):
        write_program("rows", project / "none" / "model.pt2")


def test_no_run(project: Path) -> None:
    with pytest.raises(UserError, match="no run here"):
        write_program("last")
