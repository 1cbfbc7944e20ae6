"""What a step computes: shapes of outputs, queries, models of several members, and a teacher."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.losses import TokenCrossEntropy
from lightkit.trainer import Forecast, Supervised, Task
from lightkit.trainer.evaluate import Predictions
from lightkit.trainer.tasks import Distillation, Retrieval, StepOutput, Weighted, fit_shape, loss_weight
from tests.refused import refused


def test_a_single_output_never_broadcasts_against_its_targets() -> None:
    step = Supervised().step(nn.Linear(3, 1), (torch.randn(6, 3), torch.randn(6)), nn.MSELoss())
    assert step.preds is not None
    assert step.preds.shape == (6,)
    for output, target in (((6, 4), (6,)), ((6, 1), (6, 1)), ((6, 2), (6, 2))):
        assert fit_shape(torch.zeros(output), torch.zeros(target)).shape == output
    assert fit_shape(torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64)).shape == (6, 1), "class numbers"


def test_weights_of_1_on_average_add_up_over_parts_of_a_batch() -> None:
    model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0]))
    x, y, weight = torch.randn(8, 3), torch.arange(8) % 2, torch.tensor([0.0, 0, 0, 0, 1, 3, 2, 2])
    each = F.cross_entropy(model(x), y, weight=loss.weight, reduction="none").detach() * weight
    task, parts = Weighted(scaled=True), ((x, y, weight), (x[:4], y[:4], weight[:4]), (x[4:], y[4:], weight[4:]))
    steps = [task.step(model, part, loss) for part in parts]
    assert steps[0].loss.item() == pytest.approx(float(each.sum() / 20))
    assert steps[0].loss.item() == pytest.approx((steps[1].loss.item() + steps[2].loss.item()) / 2)
    assert [step.weight for step in steps] == [20, 10, 10]
    model.eval()  # there the mean goes by the weights, and a batch without any counts for nothing
    steps = [task.step(model, part, loss) for part in parts[:2]]
    assert steps[0].loss.item() == pytest.approx(float(each.sum() / 23))
    assert [float(step.weight) for step in steps] == [23.0, pytest.approx(0.0)]
    assert steps[1].loss.item() == 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loss", ["plain", "classes", "ignored", "dense", "smooth", "squares"])
def test_weights_of_1_change_nothing(loss: str, training: bool) -> None:
    by_class, shape = torch.tensor([1.0, 4.0, 0.5]), (5, 7) if loss == "dense" else ()
    options = {"weight": None if loss in ("plain", "squares") else by_class, "ignore_index": 2}
    options |= {"label_smoothing": 0.1 if loss == "smooth" else 0.0} | (
        {} if loss != "classes" else {"ignore_index": 9}
    )
    criterion = nn.MSELoss() if loss == "squares" else nn.CrossEntropyLoss(**options)
    x = torch.randn(9, 3, *shape)
    y = x.flip(0) if loss == "squares" else torch.randint(3, (9, *shape))
    model = nn.Identity().train(training)
    plain = Supervised().step(model, (x, y), criterion)
    same = Weighted(scaled=True).step(model, (x, y, torch.ones(9)), criterion)
    assert same.loss.item() == pytest.approx(plain.loss.item(), rel=1e-5)
    assert float(same.weight) == pytest.approx(float(loss_weight(plain, criterion) or 9))
    doubled = Weighted().step(model.eval(), (x, y, torch.tensor([2.0, 0, 1, 1, 1, 1, 1, 1, 1])), criterion)
    rows = torch.tensor([0, 0, 2, 3, 4, 5, 6, 7, 8])
    assert doubled.loss.item() == pytest.approx(criterion(x[rows], y[rows]).item(), rel=1e-5), (
        "as a row that is twice there"
    )


def test_the_query_of_a_sample_goes_to_the_metrics() -> None:
    x, y, indexes, layer = torch.randn(6, 3), torch.ones(6), torch.arange(6), nn.Linear(3, 1)
    assert Retrieval().step(layer, (x, y, indexes), nn.MSELoss()).metric_kwargs == {"indexes": indexes}
    text = "number of a query … (x, y, indexes) … tuple of 2"
    refused(lambda: Retrieval().step(layer, (x, y), nn.MSELoss()), text)
    refused(lambda: Supervised().step(layer, (x, y, indexes), nn.MSELoss()), "tasks.Retrieval is one")


@pytest.mark.parametrize(
    ("batch", "received"),
    [({"x": 1, "y": 2}, "dict of x, y"), ((1, 2, 3), "tuple of 3"), (torch.zeros(2, 4), "Tensor")],
)
def test_samples_that_are_no_pairs_want_a_task(batch: object, received: str) -> None:
    text = f"no pairs of an input and a target … {received} … trainer.task._target_="
    refused(lambda: Supervised().step(nn.Identity(), batch, nn.MSELoss()), text)
    with pytest.raises(NotImplementedError):
        Task().step(nn.Identity(), batch, nn.MSELoss())


class Named(nn.Module):
    """Gives outputs by name: those of three members, and a penalty as several devices give it."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        members = torch.stack([x * scale for scale in (1.0, 2.0, 4.0)], dim=1)
        named = {"logits": members.mean(1), "members": members, "penalty": torch.tensor([1.0, 3.0])}
        return {name: named[name] for name in ("logits", *self.names)}


@pytest.mark.parametrize("target", ["classes", "shares", "values"])
def test_the_loss_of_members_is_the_mean_of_theirs(target: str) -> None:
    x = torch.randn(6, 1 if target == "values" else 4)
    targets = {"classes": torch.arange(6) % 4, "shares": torch.rand(6, 4), "values": torch.randn(6)}
    loss: nn.Module = nn.MSELoss() if target == "values" else nn.CrossEntropyLoss(label_smoothing=0.1)
    y = targets[target]
    step = Supervised().step(Named("members"), (x, y), loss)
    members = [fit_shape(x * scale, y) for scale in (1.0, 2.0, 4.0)]
    torch.testing.assert_close(step.loss, torch.stack([loss(member, y) for member in members]).mean())
    assert step.preds is not None
    torch.testing.assert_close(step.preds, torch.stack(members).mean(0))


def test_a_penalty_is_added_in_training_alone() -> None:
    batch, loss = (torch.randn(6, 4), torch.arange(6) % 4), nn.CrossEntropyLoss()
    plain = Supervised().step(Named(), batch, loss)
    step = Supervised().step(Named("penalty"), batch, loss)
    torch.testing.assert_close(step.loss, plain.loss + 2.0)
    indexed = Retrieval().step(Named("members", "penalty"), (*batch, torch.arange(6)), loss)
    assert indexed.loss > plain.loss
    assert torch.equal(Supervised().step(Named("members", "penalty").eval(), batch, loss).loss, plain.loss)


# Kind -> (output shape, targets, loss)
CASES = {
    "multiclass": ((6, 4), torch.arange(6) % 4, nn.CrossEntropyLoss()),
    "language_modeling": ((6, 5, 7), torch.arange(30).view(6, 5) % 7, TokenCrossEntropy()),
    "multilabel": ((6, 4), (torch.arange(24).view(6, 4) % 2).float(), nn.BCEWithLogitsLoss()),
    "binary": ((6, 1), (torch.arange(6) % 2).float(), nn.BCEWithLogitsLoss()),
    "regression": ((6, 2), torch.arange(12.0).view(6, 2), nn.MSELoss()),
}


class Table(nn.Module):
    """Learned outputs, whatever the input."""

    def __init__(self, *shape: int, seed: int = 0, dropout: float = 0.5) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.outputs = nn.Parameter(torch.randn(*shape, generator=generator))
        self.dropout = nn.Dropout(dropout)
        self.calls: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled()))
        return self.dropout(self.outputs[: len(x)])


def student(*shape: int) -> Table:
    return Table(*shape, seed=1, dropout=0.0)


def made(kind: str, **options) -> tuple:
    """A task with a teacher, a student, a batch and a loss."""
    shape, target, loss = CASES[kind]
    task = Distillation(Supervised(), Table(*shape), kind=kind, **{"temperature": 2.0, "weight": 0.5} | options)
    return task, student(*shape), (torch.zeros(len(target), 1), target), loss


def by_hand(kind: str, ours: Tensor, theirs: Tensor, t: float) -> float:
    """The distance, written out."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if kind == "regression":
        return ((ours - theirs) ** 2).mean().item()
    if kind in ("binary", "multilabel"):
        p, q = torch.sigmoid(theirs / t), torch.sigmoid(ours / t)
        return t * t * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean().item()
    p, q = (theirs / t).softmax(-1), (ours / t).softmax(-1)
    return t * t * (p * (p / q).log()).sum(-1).mean().item()


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(("weight", "temperature"), [(0.3, 2.0), (1.0, 1.0), (0.0, 4.0)])
def test_the_loss_is_the_formula(kind, weight, temperature) -> None:
    task, model, batch, loss = made(kind, weight=weight, temperature=temperature)
    step = task.step(model, batch, loss)
    plain = Supervised().step(model, batch, loss)
    distance = by_hand(kind, model.outputs, task.teacher.outputs, temperature)
    assert step.loss.item() == pytest.approx((1 - weight) * plain.loss.item() + weight * distance, rel=1e-5)
    assert torch.equal(step.preds, plain.preds)
    assert torch.equal(step.target, batch[1])
    if weight == 1.0:  # a student like its teacher has nothing to learn from it
        model.load_state_dict(task.teacher.state_dict())
        value = task.step(model, batch, loss).loss
        value.backward()
        assert value.item() == pytest.approx(0.0, abs=1e-6)
        assert model.outputs.grad.abs().max() < 1e-6


def test_pixels_are_compared_over_their_classes() -> None:
    teacher, model = Table(2, 3, 4, 4), student(2, 3, 4, 4)
    task = Distillation(Supervised(), teacher, temperature=2.0, weight=1.0, kind="multiclass")
    step = task.step(model, (torch.zeros(2, 1), torch.zeros(2, 4, 4, dtype=torch.int64)), nn.CrossEntropyLoss())
    ours, theirs = (m.outputs.movedim(1, -1) for m in (model, teacher))
    assert step.loss.item() == pytest.approx(by_hand("multiclass", ours, theirs, 2.0), rel=1e-5)


def test_the_teacher_is_in_eval_mode_and_learns_nothing() -> None:
    task, model, batch, _ = made("multiclass")
    before, calls = task.teacher.outputs.detach().clone(), []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(output.requires_grad)
        return F.cross_entropy(output, target)

    task.step(model, batch, loss).loss.backward()
    assert calls == [True], "the criterion is called for the student only"
    assert task.teacher.calls == [(False, False)]
    assert model.calls == [(True, True)]
    assert task.teacher.outputs.grad is None
    assert torch.equal(task.teacher.outputs, before)
    assert not hasattr(task, "state_dict")
    other, its_model = copy.deepcopy((task, model))
    assert other.teacher is task.teacher, "a copy shares it"
    assert other.task is not task.task
    assert torch.equal(other.step(its_model, batch, loss).loss, task.step(model, batch, loss).loss)


def test_evaluation_has_the_plain_loss_and_asks_the_teacher_once() -> None:
    task, model, batch, loss = made("multiclass")
    model.eval()
    for _ in range(3):
        step = task.step(model, batch, loss)
    assert torch.equal(step.loss, Supervised().step(model, batch, loss).loss)
    assert len(task.teacher.calls) == 1  # to see whether its outputs fit


def test_a_teacher_is_shown_no_weights_of_rows() -> None:
    plain, model, (x, y), loss = made("multiclass")
    task = Distillation(Weighted(), plain.teacher, kind="multiclass")
    found = task.step(model, (x, y, torch.ones(len(y))), loss)
    assert found.loss.item() == pytest.approx(plain.step(model, (x, y), loss).loss.item(), rel=1e-5)


def test_random_numbers_are_left_to_the_student() -> None:
    task, model, batch, loss = made("multiclass")
    model.dropout.p = 0.5
    torch.manual_seed(3)
    step = task.step(model, batch, loss)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(Supervised().step(model, batch, loss).preds, step.preds)
    assert torch.equal(torch.rand(1), after)


def test_a_teacher_that_does_not_fit_is_refused() -> None:
    classes, batch = CASES["multiclass"][1], (torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64))

    class Huge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")

    text = "finetune.distill.teacher: the teacher's outputs are not of the … (6, 4) … (6, 7)"
    for model in (student(6, 4), student(6, 4).eval()):
        step = partial(Distillation(Supervised(), Table(6, 7), kind="multiclass").step, model)
        refused(partial(step, (torch.zeros(6, 1), classes), nn.CrossEntropyLoss()), text)
    task = Distillation(Supervised(), nn.Linear(9, 4), kind="multiclass")
    text = "the teacher cannot take the batches of this run: RuntimeError"
    refused(lambda: task.step(nn.Linear(5, 4), batch, nn.CrossEntropyLoss()), text)
    with pytest.raises(RuntimeError, match="not enough memory") as caught:
        Distillation(Supervised(), Huge(), kind="multiclass").step(nn.Linear(5, 4), batch, nn.CrossEntropyLoss())
    assert not isinstance(caught.value, UserError)


def test_a_task_of_ones_own_serves_both() -> None:
    class Pairs(Task):
        """Two inputs, and a loss of its own."""

        def step(self, model, batch, criterion) -> StepOutput:
            output = model(batch["a"]) - model(batch["b"])
            return StepOutput(output.square().mean(), output, batch["y"])

    class Silent(Task):
        def step(self, model, batch, criterion) -> StepOutput:
            return StepOutput(model(batch).mean())

    torch.manual_seed(0)
    batch = {"a": torch.randn(6, 3), "b": torch.randn(6, 3), "y": torch.zeros(6, 2)}
    teacher, model = nn.Linear(3, 2), nn.Linear(3, 2)
    step = Distillation(Pairs(), teacher, weight=1.0, kind="regression").step(model, batch, nn.MSELoss())
    ours, theirs = (m(batch["a"]) - m(batch["b"]) for m in (model, teacher))
    assert torch.allclose(step.loss, (ours - theirs).square().mean())
    task = Distillation(Silent(), teacher, kind="regression")
    text = "the task gives no outputs that a teacher's could be compared with"
    refused(lambda: task.step(model, batch["a"], nn.MSELoss()), text)


def test_half_precision_outputs_are_compared_in_single_and_extreme_ones_stay_finite() -> None:
    task, model, batch, loss = made("multiclass", weight=1.0)
    task.teacher.half()
    wanted = by_hand("multiclass", model.outputs, task.teacher.outputs, 2.0)
    assert task.step(model, batch, loss).loss.item() == pytest.approx(wanted, rel=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear = Distillation(Supervised(), nn.Linear(5, 4), kind="multiclass")
        step = linear.step(nn.Linear(5, 4), (torch.randn(6, 5), batch[1]), loss)
    assert step.loss.dtype == torch.float32
    for kind in ("multiclass", "multilabel"):
        task, model, batch, loss = made(kind, weight=1.0, temperature=0.5)
        with torch.no_grad():
            task.teacher.outputs.mul_(1000)
            model.outputs.mul_(-1000)
        value = task.step(model, batch, loss).loss
        value.backward()
        assert math.isfinite(value.item())
        assert torch.isfinite(model.outputs.grad).all()


@pytest.mark.gpu
def test_the_rehearsal_on_the_cpu_works_with_a_teacher_on_a_gpu() -> None:
    task, model, batch, loss = made("multiclass")
    task.teacher.to("cuda")
    copied = copy.deepcopy(task)
    copied.step(model.eval(), batch, loss)
    assert task.teacher.outputs.is_cuda
    task.step(model.to("cuda").train(), tuple(part.to("cuda") for part in batch), loss).loss.backward()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 0.0}, "finetune.distill.temperature: must be above 0"),
        ({"temperature": math.nan}, "finetune.distill.temperature: must be above 0"),
        ({"weight": 1.5}, "finetune.distill.weight: must be from 0 to 1"),
        ({"weight": -0.1}, "finetune.distill.weight: must be from 0 to 1"),
        ({"kind": "custom"}, "no distillation for such targets"),
    ],
)
def test_arguments_out_of_range_are_refused(options, text) -> None:
    refused(lambda: Distillation(Supervised(), nn.Linear(1, 1), **{"kind": "multiclass", **options}), text)


class Nothing(nn.Module):
    """Gives no change of a forecast, and keeps what it has seen."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return torch.zeros(len(x), 2)


def test_a_forecast_begins_with_the_seasonal_naive_one_in_the_unit_of_the_data() -> None:
    # values 10, 20, 30, 40, the naive forecast 30, 40, a covariate, and a scale of 4
    x = torch.tensor([[[value, place, 4.0] for place, value in enumerate((10.0, 20.0, 30.0, 40.0, 30.0, 40.0))]])
    model, y = Nothing(), torch.tensor([[38.0, 40.0]])
    step = Forecast().step(model, (x, y), nn.L1Loss())
    assert step.preds.tolist() == [[30, 40]]
    assert step.loss.item() == step.log["mase"].item() == 1.0  # 8 / 4 and 0 / 4
    assert model.seen[0, :, 0].tolist() == [(value - 35) / 4 for value in (10, 20, 30, 40, 30, 40)]
    assert model.seen[0, :, 1].tolist() == [0, 1, 2, 3, 4, 5]
    assert model.seen[0, :, 2].tolist() == [0, 0, 0, 0, 1, 1]


def test_predicted_tags_are_as_many_as_words() -> None:
    collected, logits = (
        Predictions("tagging", ("x", "y")),
        torch.tensor([[[1.0, 0, 0], [0, 1, 1]], [[0, 0, 0], [1, 1, 1.0]]]),
    )
    collected.update(logits, torch.tensor([[0, 1, 1], [1, -100, -100]]), torch.zeros(()), 2)
    collected.update(logits[:1, :, :1], torch.tensor([[1]]), torch.zeros(()), 1)
    rows = collected.rows(torch.arange(3))
    assert [(row["target"], row["prediction"]) for row in rows] == [
        (["x", "y", "y"], ["x", "y", "y"]), (["y"], ["y"]), (["y"], ["x"]),
    ]  # fmt: skip
    assert collected.columns(collected.outputs())["prediction"] == [["x", "y", "y"], ["y"], ["x"]]
