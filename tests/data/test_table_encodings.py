"""Columns of names, dates and texts as features, and rows of them that are new to a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightkit.data import build_data, table
from lightkit.data.table_encodings import ENCODINGS, Codes, Dates, Words
from tests.conftest import Outcome
from tests.refused import refused


def test_parts_of_dates_are_those_of_pandas() -> None:
    given = ["2024-02-29 23:30", "1999-12-31", "2026-01-01T00:00:00Z", "2030-07-04 12:00:00.123456789"]
    found, dates = Dates().features(given), [pd.Timestamp(cell) for cell in given]
    wanted = [[date.year, date.month, date.day, date.weekday(), date.hour] for date in dates]
    assert found[:, :5].tolist() == wanted
    assert [part for part in Dates().parts if part.endswith((".hour", ".hour.sin"))] == [".hour", ".hour.sin"]
    assert found[3, 11:] == pytest.approx([math.sin(math.pi), math.cos(math.pi)], abs=1e-6)
    assert np.isnan(Dates().features(["", "31.12.1999", "2023-02-29"])).all()
    assert Dates("%d.%m.%Y").features(["31.12.1999"])[0, :4].tolist() == [1999, 12, 31, 4]


def test_words_are_counted_by_themselves() -> None:
    found = Words(64).features(["good light", "light good", "good light", ""])
    assert found.shape == (4, 64)
    assert (found[0] == found[2]).all()
    assert (found[0] != found[1]).any(), "pairs of words have an order"
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1, 1, 0])


def test_encodings_are_built_again_from_what_a_run_keeps() -> None:
    for one in (Dates("%Y"), Words(8), Codes(["a", "b"])):
        state = dict(one.state_dict())
        assert ENCODINGS[state.pop("kind")](**state) == one


def frame(rows: int = 60) -> pd.DataFrame:
    made = pd.DataFrame({"city": [f"c{row % 9}" for row in range(rows)], "x": np.arange(rows) ** 2 / 7.0})
    made["when"] = [f"{row % 28 + 1}.{row % 12 + 1}.2024" for row in range(rows)]
    made["note"] = [f"{'good' if row % 2 else 'bad'} thing number {row}" for row in range(rows)]
    made["kind"] = ["ab"[row % 2] for row in range(rows)]
    return made


SETTINGS = {"target": "kind", "embedded": ["city"], "dates": ["when"], "date_format": "%d.%m.%Y", "text": ["note"]}


def test_numbers_of_names_are_neither_scaled_nor_filled_with_a_mean() -> None:
    made = frame()
    made.loc[0, ["city", "when", "note"]] = None
    data = table(frame=made, **SETTINGS, text_features=4, missing={"*": "most_frequent", "note": "constant"})
    assert data.info.cardinalities == (10, *[0] * 18)
    assert [note for note in data.notes if "its words are 4 inputs" in note]
    built = build_data(dataset=data, split={"by": "ordered"}, normalize="standard")
    codes = built.source.x[:, 0]
    assert codes[1:].tolist() == [row % 9 + 1 for row in range(1, 60)]
    assert float(codes[0]) == 2, "the most frequent of the training rows"
    assert built.source.x[:, 1].mean() != pytest.approx(made.x.mean())
    refused(lambda: table(frame=made, **SETTINGS, missing="mean"), "column 'city' holds names, which have no mean")
    refused(lambda: table(frame=made, **SETTINGS), "row 0: column … has no value")


def test_nothing_is_taken_for_something_else() -> None:
    made = frame()
    refused(lambda: table(frame=made, **SETTINGS | {"embedded": [], "text": []}), "column 'city' holds text")
    refused(lambda: table(frame=made, **SETTINGS | {"text": []}), "column 'note' holds … data.dataset.text=[note]")
    refused(lambda: table(frame=made, **SETTINGS | {"dates": []}), "holds dates or times … data.dataset.dates=[when]")
    refused(lambda: table(frame=made, **SETTINGS | {"date_format": ""}), "'when' holds no date; 60 rows hold none")
    made["p"] = [f"p{row}" for row in range(60)]
    refused(
        lambda: table(frame=made, **SETTINGS), "'p' holds another text in nearly every row … data.dataset.id_column"
    )
    refused(
        lambda: table(frame=made, **SETTINGS | {"embedded": ["city", "p"]}, max_categories=20), "would be 60 inputs"
    )
    refused(lambda: table(frame=made, **SETTINGS | {"categorical": ["city"]}), "among data.dataset.categorical, too")
    data = table(frame=made, **SETTINGS, id_column="p")
    assert (data.row_names, data.row_column) == (made.p.tolist(), "p")


def test_new_rows_and_models_that_do_not_embed(cli: Callable[..., Outcome], project: Path) -> None:
    frame().to_parquet(project / "t.parquet")
    words = ["data=table", "data.dataset.path=t.parquet", "data.dataset.target=kind", "data.dataset.embedded=[city]",
             "data.dataset.dates=[when]", "data.dataset.date_format='%d.%m.%Y'", "data.dataset.text=[note]",
             "trainer.epochs=1", "device=cpu"]  # fmt: skip
    done = cli("train", *words)
    assert done.code == 2
    assert "model: this model would take the numbers of names" in done.err
    done = cli("train", *words, "model=tabular", "data.dataset.id_column=x", "name=one")
    assert done.code == 0, done.err
    new = frame(3)
    new.loc[1, "when"], new.loc[2, "city"] = "soon", "Oslo"
    new.to_json(project / "new.jsonl", orient="records", lines=True)
    done = cli("predict", "one", "--input", "new.jsonl", "--output", "-")
    assert "new.jsonl, line 2: column 'when' holds 'soon', no date" in done.err
    done = cli("predict", "one", "--input", "new.jsonl", "--output", "-", "--skip-bad")
    assert done.out.splitlines()[0] == "row,x,kind,prediction"
    assert "column 'city': 'Oslo' is not in the training data" in done.err
    assert "row,x,target,prediction" in (cli("predict", "one", "--output", "-").out)


@pytest.mark.parametrize(
    ("target", "loss", "monitor"),
    [
        ("kind", "CrossEntropyLoss", "val/accuracy"),
        ("x", "MSELoss", "val/mse"),
        ("[yes,no]", "BCEWithLogitsLoss", "val/f1_macro"),
    ],
)
def test_loss_and_metrics_follow_from_the_target(
    cli: Callable[..., Outcome], project: Path, target: str, loss: str, monitor: str
) -> None:
    frame().assign(yes=[0, 1] * 30, no=[1, 0] * 30, n=range(60)).to_csv(project / "t.csv", index=False)
    words = ["data=table", "data.dataset.path=t.csv", f"data.dataset.target={target}", "data.dataset.features=[n]"]
    told = cli("train", "--cfg", "job", *words).out
    assert f"torch.nn.{loss}" in told
    assert f"monitor: {monitor}" in told
    assert "by_task" not in told
    told = cli("train", "--cfg", "job", *words, "loss=huber", "metrics=none").out
    assert ("HuberLoss" in told, "monitor: val/loss" in told) == (True, True), "what the user names wins"


def test_vectors_of_names_are_learnt() -> None:
    from lightkit.models import Tabular

    model = Tabular(4, 2, cardinalities=[0, 11, 0], hidden=[8], embedding_dim=3)
    assert [tuple(one.weight.shape) for one in model.embeddings] == [(11, 3)]
    assert Tabular(2, 2, cardinalities=(5000, 3)).embeddings[0].embedding_dim == round(1.6 * 5000**0.56)
    x = torch.tensor([[0.5, 10, 1, 1], [0.5, 99, 1, 1], [0.5, 0, 1, 1]])
    found = model(x)
    assert torch.allclose(found[1], found[2]), "a number that stands for no name counts as 0"
    found.sum().backward()
    assert model.embeddings[0].weight.grad[[0, 10]].abs().sum() > 0
    assert Tabular(4, 2)(x).shape == (3, 2), "a table without such columns"
