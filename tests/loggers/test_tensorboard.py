from __future__ import annotations

import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import plugin_data_pb2
from torch import nn

from lightkit.loggers import TensorBoardLogger, tensorboard
from lightkit.loggers.events import read_scalars, repeated
from lightkit.loggers.tensorboard import columns, flat, tag

SETTINGS = {
    "name": "run",
    "seed": 0,
    "model": {"_target_": "lightkit.models.MLP", "hidden": [64, 64], "norm": None},
    "data": {"batch_size": 16, "num_workers": 4, "augment": [], "dataset": {"_target_": "lightkit.data.tables.wine"}},
    "logger": {"every_steps": 2},
    "device": {"name": "cpu", "precision": "bf16"},
    "metrics": {"monitor": "val/f1", "val": {"f1": {"_target_": "torchmetrics.F1Score"}}},
    "trainer": {"epochs": 3, "task": {"_target_": "a.Task"}, "nonfinite": {"limit": 3}},
}
UNKNOWN, SUCCESS, FAILURE = range(3)
ALWAYS = {"seed": 0, "model": "MLP", "data": "wine"}


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    return events


def points(folder, name):
    return [(event.step, event.value) for event in read(folder).Scalars(name)]


def log(folder, start, stop, *, resume=0):
    logger = TensorBoardLogger(folder)
    row = {"step": resume, "epoch": resume // 10, "time": 1.0, "train/loss": float(resume), "val/f1/a cat": 0.5}
    logger.start(resume, [row] if resume else [])
    for step in range(start, stop):
        logger.scalars({"train/loss": float(step), "val/f1/a cat": 0.5}, step=step, epoch=step // 10)
    return logger


def test_values_arrive_under_their_names(tmp_path):
    folder = tmp_path / "tb"
    logger = TensorBoardLogger(folder)
    logger.start(0)
    logger.close()
    assert not folder.exists(), "nothing is made before the first value"
    log(folder, 1, 4).close()
    assert points(folder, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert read(folder).Tags()["scalars"] == ["train/loss", "val/f1/a_cat", "vitals/epoch"]


def test_after_resumes_no_step_stands_twice(tmp_path):
    (tmp_path / "config.yaml").write_text("name: x")  # other files change nothing
    logger = log(tmp_path, 1, 30)
    logger.scalars({"val/loss": 1.0}, step=29, epoch=2)
    logger._writer.flush()  # as of a run that was killed
    log(tmp_path, 21, 40, resume=20).close()
    log(tmp_path, 6, 8, resume=5).close()
    for name in ("train/loss", "vitals/epoch"):
        assert [step for step, _ in points(tmp_path, name)] == [*range(1, 8)]
    logger.close()


def test_hyperparameters_stand_in_the_same_directory(tmp_path):
    logger = log(tmp_path / "tb", 1, 3)
    settings = {"optim": {"lr": 0.1, "betas": [0.9, 0.99], "fused": None, "amsgrad": False}, "logger": {"x": 1}}
    logger.hparams(settings, ["optim.betas=[0.9,0.99]", "optim.amsgrad=false"])
    logger.end("finished")
    logger.close()
    assert [path for path in (tmp_path / "tb").rglob("*") if path.is_dir()] == []
    content = read(tmp_path / "tb").summary_metadata
    data = {name: plugin_data_pb2.HParamsPluginData.FromString(m.plugin_data.content) for name, m in content.items()
            if m.plugin_data.plugin_name == "hparams"}  # fmt: skip
    assert set(data) == {"_hparams_/session_start_info", "_hparams_/session_end_info"}  # no experiment: see `records`
    start = data["_hparams_/session_start_info"].session_start_info.hparams
    assert set(start) == {"optim.lr", "optim.betas", "optim.amsgrad"}
    assert start["optim.lr"].number_value == 0.1
    assert start["optim.amsgrad"].WhichOneof("kind") == "bool_value"
    assert start["optim.betas"].string_value == "[0.9, 0.99]"
    assert data["_hparams_/session_end_info"].session_end_info.status == 1


def session(folder):
    """What TensorBoard makes of the hyperparameters: the seed, and the status as a number of its API."""
    content = read(folder).summary_metadata
    parts = {name.rpartition("/")[2]: plugin_data_pb2.HParamsPluginData.FromString(data.plugin_data.content)
             for name, data in content.items() if data.plugin_data.plugin_name == "hparams"}  # fmt: skip
    end = parts.get("session_end_info")
    seed = parts["session_start_info"].session_start_info.hparams["seed"].number_value
    return seed, end.session_end_info.status if end is not None else UNKNOWN


def test_a_run_has_its_hyperparameters_from_the_start_and_its_status_from_the_end(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.start(0)
    logger.hparams({"seed": 3})
    assert list(tmp_path.iterdir()) == [], "TensorBoard is imported when there is something to show"
    logger.scalars({"train/loss": 1.0, "val/f1/a cat": 0.5}, step=1, epoch=0)
    assert session(tmp_path) == (3, UNKNOWN), "as of a run that is killed"
    logger.end("failed")
    logger.end("finished")  # of which only the first counts
    logger.close()
    assert session(tmp_path) == (3, FAILURE)
    resumed = log(tmp_path, 2, 3, resume=1)
    resumed.hparams({"seed": 4})
    resumed.scalars({"train/loss": 1.0}, step=4, epoch=0)
    assert session(tmp_path) == (4, UNKNOWN)
    row = {"step": 2, "epoch": 0, "time": 1.0, "train/loss": 2.0, "val/f1/a cat": 0.5}
    resumed.start(2, [row])  # a rollback
    assert session(tmp_path) == (4, UNKNOWN)
    resumed.end("finished")
    resumed.close()
    assert session(tmp_path) == (4, SUCCESS)
    assert repeated(tmp_path) == {}


def test_a_logger_without_settings_has_no_session(tmp_path):
    logger = log(tmp_path, 1, 2)
    logger.end("finished")
    logger.close()
    assert "hparams" not in {data.plugin_data.plugin_name for data in read(tmp_path).summary_metadata.values()}


def test_figures_texts_and_images(tmp_path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=50)
    figure.subplots().plot([1, 2])
    logger = TensorBoardLogger(tmp_path)
    logger.figure("test/roc", figure, step=3)
    logger.text("test/table", "| a |", step=3)
    logger.images("train/images", torch.randn(2, 1, 8, 8), step=0)
    logger.images("train/bands", torch.ones(2, 5, 8, 8, dtype=torch.uint8), step=0)
    logger.close()
    events = read(tmp_path)
    assert set(events.Tags()["images"]) == {"view/test/roc", "view/train/images", "view/train/bands"}
    picture = events.Images("view/test/roc")[0]
    assert (picture.width, picture.height, picture.step) == (100, 50, 3)
    assert "test/table/text_summary" in events.Tags()["tensors"]


@pytest.mark.filterwarnings("ignore")  # tracing itself warns
def test_graph(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.graph(nn.Linear(2, 3), torch.ones(1, 2))
    logger.close()
    assert read(tmp_path).Tags()["graph"]


def test_tags_have_curves_come_before_everything_else():
    assert tag("/val/f1/ä cat (2)") == "val/f1/ä_cat__2_"
    assert tag("") == "vitals/_"
    assert tag("test/f1/ä cat") == "view/test/f1/ä_cat"
    names = ["lr/all", "grad/norm", "speed/data_wait", "epoch", "train/loss", "val/loss", "test/loss"]
    groups = [tag(name).partition("/")[0] for name in sorted(names, key=tag)]
    assert groups == ["train", "val", "view", *["vitals"] * 4]


def test_a_run_of_before_whose_test_had_another_tag_goes_on_without_a_point_twice(tmp_path):
    writer = TensorBoardLogger(tmp_path)
    for step in (1, 2):
        writer._writer.file_writer.add_event(old_event({"train/loss": step, "vitals/epoch": 0}, step), step)
    writer._writer.file_writer.add_event(old_event({"val/loss": 2.0, "test/loss": 3.0}, 2), 2)
    writer.close()
    resumed = TensorBoardLogger(tmp_path)
    rows = [{"step": 2, "epoch": 0, "train/loss": 2.0}, {"step": 2, "epoch": 0, "val/loss": 2.0, "test/loss": 3.0}]
    resumed.start(2, rows)
    resumed.close()
    assert repeated(tmp_path) == {}
    assert sorted(read_scalars(tmp_path)) == ["train/loss", "val/loss", "view/test/loss", "vitals/epoch"]


def old_event(values, step):
    points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return Event(step=step, summary=Summary(value=points))


def test_the_file_under_way_is_forced_to_the_disk(tmp_path, monkeypatch):
    synced = []
    for name in ("events.out.tfevents.1.host.1.0", "events.out.tfevents.2.host.1.0"):
        (tmp_path / name).touch()
    monkeypatch.setattr(tensorboard, "sync_file", synced.append)
    TensorBoardLogger(tmp_path).sync()
    assert [path.name for path in synced] == ["events.out.tfevents.2.host.1.0"]
    TensorBoardLogger(tmp_path / "none").sync()
    assert len(synced) == 1


@pytest.mark.parametrize(("mode", "best"), [("min", [3.0, 1.0, 1.0, 0.5]), ("max", [3.0, 3.0, 3.0, 3.0])])
def test_the_best_monitored_value_so_far_comes_first_and_goes_on_over_a_resume(tmp_path, mode, best):
    values = {1: 3.0, 2: 1.0, 3: math.nan, 4: 2.0, 5: 0.5}
    first = TensorBoardLogger(tmp_path, "val/loss", mode)
    for step, value in values.items():
        first.scalars({"val/loss": value if step < 4 else 0.0}, step=step, epoch=step)
    first.close()
    kept = [{"step": step, "epoch": step, "val/loss": values[step]} for step in (1, 2)]
    resumed = TensorBoardLogger(tmp_path, "val/loss", mode)
    resumed.start(2, kept)
    for step in (3, 4, 5):
        resumed.scalars({"val/loss": values[step]}, step=step, epoch=step)
    resumed.close()
    curves = read_scalars(tmp_path)
    assert curves["main/best/val/loss"] == [*zip((1, 2, 4, 5), best)]
    assert min(curves) == "main/best/val/loss"
    assert [step for step, _ in curves["main/val/loss"]] == [1, 2, 3, 4, 5]
    assert repeated(tmp_path) == {}


def test_the_page_opens_on_the_losses_and_the_monitored_value(tmp_path):
    logger = TensorBoardLogger(tmp_path, "val/f1/ä cat", "max")
    logger.scalars({"train/loss": 2.0, "train/accuracy": 0.1}, step=1, epoch=0)
    logger.scalars({"val/loss": 3.0, "val/f1/ä cat": 0.5, "val/accuracy": 0.2}, step=1, epoch=0)
    logger.scalars({"test/loss": 4.0}, step=1, epoch=0)
    logger.close()
    first = ["main/best/val/f1/ä_cat", "main/train/loss", "main/val/f1/ä_cat", "main/val/loss"]
    assert sorted(read_scalars(tmp_path))[:5] == [*first, "train/accuracy"]


def test_what_was_typed_has_a_column_beside_the_seed_and_what_learns_what():
    assert columns(SETTINGS) == ALWAYS
    typed = ["++device.precision=bf16", "model.hidden=[64,64]", "finetune=[lora,norm]", "experiment=digits/cnn"]
    typed += ["data=wine", "data.num_workers=4", "logger.every_steps=2", "hydra.run.dir=x", "~metrics.val.x"]
    swept = {"device.precision": "bf16", "model.hidden": "[64, 64]", "data.num_workers": 4}
    chosen = {"finetune": "[lora,norm]", "experiment": "digits/cnn"}
    settings = {**SETTINGS, "finetune": {"freeze": []}}
    assert columns(settings, [*typed, "no_such_key=1"]) == {**ALWAYS, **swept, **chosen}


def test_what_is_swept_and_the_seed_are_among_the_five_that_tensorboard_shows_of_other_runs():
    """It sorts those in which runs differ to the front, and by name, and shows five."""
    other = {**SETTINGS, "model": {"_target_": "a.CNN", "width": 3}, "trainer": {"epochs": 9, "accumulate": 2}}
    made = [columns({**SETTINGS, "optim": {"lr": rate}}, [f"optim.lr={rate}", "seed=0"]) for rate in (0.1, 0.2)]
    made.append(columns(other, []))
    names = sorted({name for run in made for name in run})
    assert {"optim.lr", "seed"} <= {*names[:5]}


def test_flags_stay_flags_and_the_rest_is_numbers_or_text():
    assert flat({"a": {"b": True, "c": {}}, "d": math.inf, "e": 1e-3, "f": (), "g": (1,)}) == {
        "a.b": True, "d": "inf", "e": 1e-3, "g": "(1,)"}  # fmt: skip


def test_a_histogram_leaves_out_what_is_not_finite(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    values = torch.tensor([1.0, math.nan, math.inf, -math.inf, 3.0], dtype=torch.bfloat16)
    logger.histogram("mine/some", values, step=1)
    logger.histogram("mine/none", torch.full((3,), math.nan), step=1)
    logger.histogram("mine/empty", torch.zeros(0), step=1)
    logger.close()
    events = EventAccumulator(str(tmp_path), {"histograms": 0}).Reload()
    (name,) = events.Tags()["histograms"]
    assert name.endswith("mine/some")
    assert events.Histograms(name)[0].histogram_value.num == 2
