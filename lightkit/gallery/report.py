"""One page by which a reader knows whether to believe a run, a cross-validation, an ensemble or a sweep.

Simple models learn from the training rows of the run, and are measured on its test rows by its metrics. The words of
the page are in `report_page.html`.
"""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import base, dummy, ensemble, linear_model, preprocessing
from torch import Tensor

from lightkit.assembly.run_rows import read_rows
from lightkit.common import run_files
from lightkit.common.drawing import render
from lightkit.common.errors import UserError
from lightkit.common.reading import read_tail
from lightkit.compare.comparison import RunComparison
from lightkit.compare.grouping import Group, read_curves
from lightkit.compare.report import tables
from lightkit.config import compose
from lightkit.config.tree import to_plain
from lightkit.data.orders import spread
from lightkit.ensemble.oof import TASKS, MemberPredictions, pooled
from lightkit.gallery.charts import read_pairs
from lightkit.runner import Runner
from lightkit.runner.ensemble.predictions import predict_held_out
from lightkit.runner.evaluation import rows_of
from lightkit.runner.folds import plain_meter
from lightkit.runner.intervals import over_repeats, row_intervals
from lightkit.runs.catalog import folds_of
from lightkit.runs.filters import direction_of
from lightkit.runs.index import read_record
from lightkit.runs.reading import read_facts, read_json, read_result, read_run
from lightkit.runs.record import PACKAGES, RunRecord, Section
from lightkit.trainer.learner import Learner, Shared

SIMPLE = {
    "constant": (dummy.DummyClassifier(strategy="prior"), dummy.DummyRegressor()),
    "linear": (linear_model.LogisticRegression(max_iter=200), linear_model.Ridge()),
    "gradient boosting": (
        ensemble.HistGradientBoostingClassifier(early_stopping=False, random_state=0),
        ensemble.HistGradientBoostingRegressor(early_stopping=False, random_state=0),
    ),
}
"""Simple models by name, for classes or labels, and for values; the first needs no inputs."""
_PACE, _WIDEST = 1_000_000, 30_000
"""Inputs times outputs of all rows that these can learn in a second; those of one row that are too many."""
_TEMPLATE, _FIGURES, _LOG_CHARACTERS = Path(__file__).with_name("report_page.html"), 24, 200_000


def report_page(record: RunRecord, comparison: RunComparison | None, **shown: Any) -> str:
    """Write one HTML file that needs nothing else; what is not in the folder of a run is left out of it.

    Args:
        record: The run; of several the first of the best group.
        comparison: The groups of several runs, the best first; None for one run.
        **shown: `title`; `findings` of the doctor; `beside`: see `beside_simple`; `why` in it tells why nothing was
            measured, and it is empty where nobody wanted it to be.
    """
    folder, folds, splits = record.folder, folds_of(record.folder), dict[str, int]()
    members = [read_record(path.parent) for path in sorted((folder / run_files.MEMBERS).glob(f"*/{run_files.CONFIG}"))]
    runs = tuple(one for one in members if not folds or one.folder in folds) or (record,)
    group = Group({}, runs) if comparison is None else comparison.rows[0].group
    with suppress(UserError):
        kept = read_rows(runs[0].folder)
        splits |= {} if kept is None else {name: len(own) for name, own in kept.rows().items()}
        chosen = [text for text in record.overrides if "." not in text.partition("=")[0]]
        shown["defaults"] = Section(to_plain(compose(chosen).cfg)).keys
    pictures = sorted((folder / run_files.FIGURES).rglob("*.png"))[:_FIGURES]
    figures = {str(one.relative_to(folder)): base64.b64encode(one.read_bytes()).decode() for one in pictures}
    shown |= {"facts": read_facts(folder), "result": read_result(folder), "splits": splits, "figures": figures}
    shown |= {"calibration": read_json(folder / run_files.CALIBRATION), "leaks": read_json(folder / run_files.LEAKS)}
    shown |= {"curves": read_curves(group), "repeats": len(group.runs), "members": members, "packages": PACKAGES}
    shown |= {"log": read_tail(folder / run_files.LOG, _LOG_CHARACTERS).splitlines(), "mode": direction_of}
    config = {name: node for section in record.sections for name, node in section.node.items()}
    shown |= {
        "record": record,
        "config": config,
        "comparison": comparison,
        "tables": tables(comparison) if comparison else (),
    }
    return render(_TEMPLATE, **shown)


def beside_simple(folder: Path, overrides: Sequence[str] = (), *, seconds: float) -> dict[str, Any]:
    """Measure a run on its test rows, with intervals, beside a constant answer, a linear model and gradient boosting.

    Args:
        folder: That of the run. Of a cross-validation each row is predicted by what has not seen it.
        overrides: Values to change.
        seconds: About how long simple models may take; it decides how many training rows they get.

    Returns:
        `rows`: how many were measured; `learnt` and `train`: training rows of simple models, and of the run; `simple`:
        their names; `values` by `<metric>|<name>`, where the name of the run is empty, and by `<metric>|<name>|less`
        those of the run less those of a simple model; `intervals`: the same with the ends of the 95 % interval by
        samples of rows, which are the same for all.

    Raises:
        ValueError: The run, or what it predicts, cannot be measured.
    """
    cfg, folds, made = read_run(folder, overrides).cfg, folds_of(folder), list[MemberPredictions]()
    for place in folds or [folder]:
        with Runner(read_run(place, overrides).cfg, place).trained() as learner:
            info, train = learner.data.info, rows_of(learner.data, "train")
            if info.task not in TASKS:
                raise UserError(f"intervals and simple models are for {', '.join(TASKS)}", received=info.task)
            width = math.prod(info.input_shape or (1,)) * max(info.num_classes or 1, 1)
            most = int(seconds * _PACE / width / len(folds or [folder]))
            few = train.with_rows(spread(train.rows, max(100, most)))
            simple = dict(_simple(learner, few, [*SIMPLE][: 1 if info.vocab_size or width > _WIDEST else None]))
            rows = predict_held_out(learner, source="the run").of_split("test")
            wide = torch.cat([info.undo(part) for part in (rows.predictions, *simple.values())], 1).float()
            made.append(replace(rows, predictions=wide, targets=info.undo(rows.targets)))
            meter = plain_meter(cfg, Shared(learner.engine, learner.data))
    names, count = ["", *simple], cfg.cv.folds if folds else 1
    repeats = [pooled(made[start : start + count]) for start in range(0, len(made), count)]

    def measure(rows: MemberPredictions, places: Tensor | None) -> dict[str, float]:
        found = [meter(replace(rows, predictions=part), places) for part in rows.predictions.chunk(len(names), 1)]
        both = [(metric, name, value) for name, own in zip(names, found) for metric, value in own.items()]
        less = {f"{metric}|{name}|less": found[0][metric] - value for metric, name, value in both}
        return {f"{metric}|{name}": value for metric, name, value in both} | less

    facts = {"rows": len(repeats[0]), "learnt": len(few.rows), "train": len(train.rows), "simple": names[1:]}
    values, intervals = over_repeats(measure, repeats), row_intervals(measure, repeats, seed=cfg.seed)
    return facts | {"values": values, "intervals": intervals}


def _simple(learner: Learner, few: Any, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield simple models by name, each with what it predicts of the test rows, `(N, C)` float32."""
    info, learnt, asked = learner.data.info, read_pairs(few), read_pairs(rows_of(learner.data, "test"))
    if learnt is None or asked is None:
        return
    x, new = (np.nan_to_num(inputs.flatten(1).double().numpy()) for inputs in (learnt[0], asked[0]))
    y, scale = learnt[1].numpy(), preprocessing.StandardScaler().fit(x)
    weigh = {} if few.weights is None else {"sample_weight": few.weights[few.rows].numpy()}
    for name in names:
        found = list[Any]()
        for column in [y] if info.task == "multiclass" else y.reshape(len(y), -1).T:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one that has not converged is a model, too
                model = SIMPLE[name if len(np.unique(column)) > 1 else "constant"][info.task == "regression"]
                one = base.clone(model).fit(scale.transform(x), column, **weigh)
            if info.task == "regression":
                found.append(one.predict(scale.transform(new))[:, None])
            else:
                table = (
                    np.eye(info.num_classes or 1)[one.classes_] if info.task == "multiclass" else one.classes_[:, None]
                )
                found.append(one.predict_proba(scale.transform(new)) @ table)
        yield name, torch.from_numpy(np.concatenate(found, 1)).float()
