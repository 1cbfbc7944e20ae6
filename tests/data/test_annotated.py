"""Masks and boxes beside image files: what a run makes of them, and files in which something is wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lightkit
from lightkit.data.annotated import CocoBoxes, SegmentationFolder
from lightkit.doctor import checks
from tests.refused import refused
from tests.resume.harness import Case, configured

Image = pytest.importorskip("PIL.Image")
Cli = Callable[..., Any]
SIDE, ROWS = 16, 20
FLIP = "data.augment=[{_target_: torchvision.transforms.v2.RandomHorizontalFlip}]"
USUAL = (FLIP, "trainer.epochs=1", "data.num_workers=0", "data.split.val=0.2", "logger.tensorboard.images=2")
MASKS = ("data=segmentation_folder", "data.dataset.size=16", "data.dataset.classes=[none,thing]", "data.batch_size=4",
         "model.channels=[4,8]", "model.depth=1")  # fmt: skip
BOXES = ("data=coco", "data.dataset.annotations=${data.dataset.root}.json", "data.batch_size=4", "model=custom",
         "model._target_=experiments.detect_shapes.detector.small_fcos", "model.size=16", "model.channels=[4,32]",
         "trust=[experiments]")  # fmt: skip


def scene(row: int) -> tuple[np.ndarray, list[int]]:
    """A dark picture with a bright rectangle, and its left, top, width and height."""
    random = np.random.default_rng(row)
    picture, box = random.integers(0, 60, (SIDE, SIDE + row % 2, 3)), [*random.integers(1, 7, 2), 6, 8]
    picture[box[1] : box[1] + box[3], box[0] : box[0] + box[2]] = 255
    return picture.astype(np.uint8), [*map(int, box)]


@pytest.fixture
def masks(project: Path) -> Path:
    for row in range(ROWS):
        picture, (left, top, width, height) = scene(2 * row)
        mask = np.zeros(picture.shape[:2], np.uint8)
        mask[top : top + height, left : left + width] = 1
        save(project / f"seg/images/{row}.png", picture)
        save(project / f"seg/masks/{row}.png", mask)
    return project / "seg"


@pytest.fixture
def boxes(project: Path) -> Path:
    found: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": [{"id": 7, "name": "thing"}]}
    for row in range(ROWS):
        picture, box = scene(row)
        save(project / f"coco/{row}.png", picture)
        found["images"].append({"id": 100 + row, "file_name": f"{row}.png"})
        found["annotations"].append({"id": row, "image_id": 100 + row, "category_id": 7, "bbox": box})
    (project / "coco.json").write_text(json.dumps(found))
    return project / "coco"


def save(path: Path, levels: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(levels)
    (image if mode is None else image.convert(mode)).save(path)


def done(cli: Cli, *command: str) -> str:
    outcome = cli(*command)
    assert outcome.code == 0, outcome.err
    return str(outcome.out)


def check_pictures(run: Path) -> None:
    """See that both validations of a run have shown pictures with what lies in them and was found."""
    (file,) = run.rglob("events.out*")
    events = EventAccumulator(str(file.parent), size_guidance={"images": 0})
    events.Reload()
    shown = {tag: events.Images(tag) for tag in events.Tags()["images"] if "val/found" in tag}
    assert [tag.rpartition("val/found/")[2] for tag in shown] == ["0", "1"]
    assert [[event.step for event in each] for each in shown.values()] == [[3, 6]] * 2
    pixels = np.asarray(Image.open(io.BytesIO(shown[next(iter(shown))][0].encoded_image_string)))
    assert pixels.shape == (192, 3 * 192, 3)
    assert (pixels[:, :192] != pixels[:, 192:384]).any(), "what lies in it is drawn"


def test_masks_go_through_a_run_and_all_that_looks_at_it(cli: Cli, masks: Path) -> None:
    words = (*MASKS, *USUAL, f"data.dataset.root={masks}", "data.normalize=image")
    run = masks.parent / "run"
    done(cli, "train", *words, "trainer.epochs=2", f"hydra.run.dir={run}")
    check_pictures(run)
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert {"test/miou", "test/dice", "test/pixel_accuracy", "test/iou/thing"} <= metrics.keys()
    assert (run / "figures" / "confusion_matrix.png").exists()
    table = Path(done(cli, "predict", str(run)).split()[-1]).read_text().splitlines()
    row, file, path = table[1].split(",")
    with Image.open(path) as image:
        written, mode = np.asarray(image), image.mode
    model = lightkit.load(run)
    expected = model.predict(str(masks / file))[0]
    assert (mode, written.shape, Path(path).stem) == ("P", (SIDE, SIDE), row)
    np.testing.assert_array_equal(written, expected)
    assert set(np.unique(expected)) <= {0, 1}
    new = done(cli, "predict", str(run), "--input", str(masks / "images"))
    assert str(ROWS) in new
    for command in (["data", *words], ["results", str(run)], ["worst", str(run)]):
        done(cli, "show", *command)


def test_masks_in_which_nothing_counts_are_told_as_that(cli: Cli, masks: Path) -> None:
    for mask in (masks / "masks").iterdir():
        save(mask, np.full_like(np.asarray(Image.open(mask)), 255))
    found = cli("train", *MASKS, *USUAL, f"data.dataset.root={masks}", "data.dataset.ignore_index=255")
    assert "no target of the batch counts: all are 255 (ignore_index)" in found.err
    refused(lambda: SegmentationFolder(str(masks), {"a": 0, "b": "x"}), "each class has a name and a level of its own")


def test_boxes_go_through_a_run_and_all_that_looks_at_it(cli: Cli, boxes: Path) -> None:
    words = (*BOXES, *USUAL, f"data.dataset.root={boxes}", "metrics.figures=[]")
    run = boxes.parent / "run"
    done(cli, "train", *words, "trainer.epochs=2", f"hydra.run.dir={run}")
    check_pictures(run)
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert {"test/box/map", "test/box/map_50", "test/loss", "test/classification"} <= metrics.keys()
    table = Path(done(cli, "predict", str(run)).split()[-1]).read_text().splitlines()
    assert table[0] == "row,file,class,score,left,top,right,bottom"
    assert len({line.split(",")[0] for line in table[1:]}) == 4
    done(cli, "predict", str(run), "--input", str(boxes))
    found = lightkit.load(run).predict(str(boxes / "0.png"))[0]
    assert found.keys() == {"boxes", "labels", "scores"}
    for command in (["data", *words], ["results", str(run)]):
        done(cli, "show", *command)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["masks", "boxes"])
def test_a_run_that_was_killed_goes_on_with_the_same_bits(request: Any, project: Path, kind: str) -> None:
    root, words = request.getfixturevalue(kind), MASKS if kind == "masks" else BOXES
    base = ("logger.console.style=quiet", "metrics.figures=[]", "device=cpu", "checkpoint.every_steps=2")
    more = (*USUAL, "trainer.epochs=2", f"data.dataset.root={root}")
    case = Case(configured(*words, *more, base=base), project / "case")
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "killed")
    case.resume(place, "data.num_workers=1")
    assert case.differences(place) == []


def test_masks_are_shared_by_processes(cli: Cli, process: Cli, masks: Path) -> None:
    found = []
    for start, name, more in ((cli, "one", ()), (process, "two", ("device=ddp", "device.name=cpu", "device.nproc=2"))):
        run = masks.parent / name
        words = (*MASKS, *USUAL, f"data.dataset.root={masks}", "logger=quiet", "metrics.figures=[]", *more)
        done(start, "train", *words, f"hydra.run.dir={run}")
        found.append(json.loads((run / "result.json").read_text())["metrics"])
    assert found[0]["test/miou"] == pytest.approx(found[1]["test/miou"], abs=0.05)


def test_masks_are_levels_or_palettes_and_may_leave_pixels_out(masks: Path) -> None:
    mask = np.full((SIDE, SIDE), 255, np.uint8)
    mask[:4], mask[4:8] = 0, 200
    save(masks / "masks/0.png", mask)
    for row in range(1, ROWS):
        save(masks / f"masks/{row}.png", mask, "P")
    data = SegmentationFolder(str(masks), {"none": 0, "thing": 200}, SIDE, ignore_index=255)
    for row in (0, 1):
        assert data[row][1].unique(return_counts=True)[1].tolist() == [4 * SIDE, 4 * SIDE, 8 * SIDE]
    assert (data.info.sizes()["ignore_index"], data.info.num_classes) == (255, 2)


@pytest.mark.parametrize("classes", ["3", "[]", "thing", "[thing,thing]", "{none: 0, thing: 1, other: 1}"])
def test_each_class_has_a_level_of_its_own(cli: Cli, masks: Path, classes: str) -> None:
    refusal = cli("train", *MASKS, f"data.dataset.root={masks}", f"data.dataset.classes={classes}")
    assert (refusal.code, "data.dataset.classes: " in refusal.err) == (2, True), refusal.err


def test_the_doctor_counts_classes_of_pixels(cli: Cli, masks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", tuple(each for each in checks.CHECKS if each[0] == "labels"))
    mask = np.full((SIDE, SIDE), 2, np.uint8)
    mask[3:] = 255
    save(masks / "masks/0.png", mask)
    words = (*MASKS, "data.dataset.classes=[none,thing,other]", "data.dataset.ignore_index=255")
    found = cli("doctor", *words, *USUAL, f"data.dataset.root={masks}")
    assert " labels of train are not" not in found.out, found.out


def test_wrong_masks_are_named(cli: Cli, masks: Path) -> None:
    words = ("train", *MASKS, *USUAL, f"data.dataset.root={masks}")
    (masks / "masks/3.png").unlink()
    (masks / "images/4.png").unlink()
    (masks / "images/5.png").write_bytes(b"no image")
    (masks / "images/6.bmp").write_bytes((masks / "images/6.png").read_bytes())
    refusal = cli(*words)
    assert refusal.code == 2
    assert "another file beside it has its name" in refusal.err, refusal.err
    for text in ("images/3.png (the other folder", "masks/4.png (the other folder", "images/5.png ("):
        assert text in refusal.err, refusal.err


@pytest.mark.parametrize(
    ("levels", "mode", "text"),
    [
        (np.full((SIDE, SIDE), 9, np.uint8), "L", "masks/0.png: 9"),
        (np.zeros((SIDE, SIDE), np.uint8), "RGB", "masks/0.png: RGB"),
        (np.zeros((SIDE, 3), np.uint8), "L", "masks/0.png: L, (3, 16)"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(cli: Cli, masks: Path, levels: Any, mode: str, text: str) -> None:
    save(masks / "masks/0.png", levels, mode)
    refusal = cli("train", *MASKS, *USUAL, f"data.dataset.root={masks}", "trainer.epochs=2", "data.split.val=0")
    assert (refusal.code, text in refusal.err) == (2, True), refusal.err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda found: found["annotations"][3].update(bbox=[1, 1, 0, 4]), "3.png … a box without an area"),
        (lambda found: found["annotations"][3].update(category_id=8), "3.png … category 8 is none of those"),
        (
            lambda found: found["annotations"][3].update(bbox=[1, 1, float("inf"), 4]),
            "3.png … a box without an area, or",
        ),
        (lambda found: found["annotations"][3].update(bbox=None), "not a file in the format … .json, annotation 4"),
        (lambda found: found["annotations"][3].update(category_id=[8]), "not a file in the format … annotation 4"),
        (lambda found: found["images"][3].update(file_name="gone.png"), "gone.png"),
        (lambda found: found["annotations"][3].update(image_id=1), "not a file in the format of COCO"),
        (lambda found: found["images"][3].update(id=101), "two images have one id"),
        (lambda found: found["annotations"][3].update(bbox=[-9, 1, 6, 4]), "3.png … a box that lies outside"),
        (lambda found: found["categories"].append({"id": 7, "name": "same"}), "category 7 is 'thing' and 'same'"),
        (lambda found: found["categories"].append({"id": "a", "name": "same"}), "not a file in the format of COCO"),
        (lambda found: found.pop("images"), "not a file in the format of COCO"),
    ],
)
def test_wrong_boxes_are_named(boxes: Path, change: Any, text: str) -> None:
    file = boxes.with_suffix(".json")
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))
    refused(lambda: CocoBoxes(str(boxes), str(file)), text)


def test_a_picture_is_in_one_split_and_has_its_boxes_inside(cli: Cli, boxes: Path) -> None:
    file = boxes.with_suffix(".json")
    refused(lambda: CocoBoxes(str(boxes), {"train": str(file), "val": str(file)}), "20 of 20 … 0.png (in 2 splits)")
    found = json.loads(file.read_text())
    found["annotations"][3].update(bbox=[40, 1, 6, 4])
    file.write_text(json.dumps(found))
    words = ("data.split.val=0", "data.split.test=0", "metrics.monitor=train/loss", f"data.dataset.root={boxes}")
    refusal = cli("train", *BOXES, *USUAL, *words)
    told = "row 3.png has a box that lies outside of the picture: [40.0, 1.0, 46.0, 5.0]"
    assert (refusal.code, told in refusal.err) == (2, True), refusal.err


def test_pictures_of_any_sizes_are_not_scaled(cli: Cli, boxes: Path) -> None:
    refusal = cli("train", *BOXES, *USUAL, f"data.dataset.root={boxes}", "data.normalize=image")
    assert (refusal.code, "data.normalize: only pairs" in refusal.err) == (2, True), refusal.err


def test_boxes_of_crowds_are_left_out_and_splits_have_files_of_their_own(boxes: Path) -> None:
    file = boxes.with_suffix(".json")
    found = json.loads(file.read_text())
    found["annotations"][0]["iscrowd"] = 1
    file.write_text(json.dumps(found))
    data = CocoBoxes(str(boxes), {"train": str(file)})
    assert data[0][1]["boxes"].shape == (0, 4)
    assert data.info.class_names == ("background", "thing")
    left, top, width, height = found["annotations"][1]["bbox"]
    assert data[1][1]["boxes"].tolist() == [[left, top, left + width, top + height]]
    assert torch.equal(data[1][1]["labels"], torch.tensor([1]))
