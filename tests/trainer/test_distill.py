from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.losses import TokenCrossEntropy
from lightkit.trainer.tasks import Distillation, StepOutput, Supervised, Task

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

    def __init__(self, *shape: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.outputs = nn.Parameter(torch.randn(*shape, generator=generator))
        self.dropout = nn.Dropout(0.5)
        self.calls: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled()))
        return self.dropout(self.outputs[: len(x)])


def student(*shape: int, seed: int = 1) -> Table:
    made = Table(*shape, seed=seed)
    made.dropout.p = 0.0
    return made


def made(kind: str, *, weight: float = 0.5, temperature: float = 2.0) -> tuple[Distillation, Table, tuple, nn.Module]:
    shape, target, loss = CASES[kind]
    task = Distillation(Supervised(), Table(*shape), temperature=temperature, weight=weight, kind=kind)
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


@pytest.mark.parametrize("kind", CASES)
def test_a_student_like_its_teacher_has_nothing_to_learn_from_it(kind) -> None:
    task, model, batch, loss = made(kind, weight=1.0)
    model.load_state_dict(task.teacher.state_dict())
    value = task.step(model, batch, loss).loss
    value.backward()
    assert value.item() == pytest.approx(0.0, abs=1e-6)
    assert model.outputs.grad.abs().max() < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("kind", CASES)
def test_training_goes_to_the_teacher_alone_at_weight_1(kind) -> None:
    task, model, batch, loss = made(kind, weight=1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        task.step(model, batch, loss).loss.backward()
        optimizer.step()
    wanted = by_hand(kind, model.outputs, task.teacher.outputs, 2.0)
    assert wanted < 1e-3


def test_pixels_are_compared_over_their_classes() -> None:
    teacher, model = Table(2, 3, 4, 4), student(2, 3, 4, 4)
    task = Distillation(Supervised(), teacher, temperature=2.0, weight=1.0, kind="multiclass")
    step = task.step(model, (torch.zeros(2, 1), torch.zeros(2, 4, 4, dtype=torch.int64)), nn.CrossEntropyLoss())
    ours, theirs = (m.outputs.movedim(1, -1) for m in (model, teacher))
    assert step.loss.item() == pytest.approx(by_hand("multiclass", ours, theirs, 2.0), rel=1e-5)


def test_the_teacher_is_in_eval_mode_and_learns_nothing() -> None:
    task, model, batch, loss = made("multiclass")
    before = copy.deepcopy(task.teacher.state_dict())
    task.step(model, batch, loss).loss.backward()
    assert task.teacher.calls == [(False, False)]
    assert model.calls == [(True, True)]
    assert task.teacher.outputs.grad is None
    assert torch.equal(task.teacher.state_dict()["outputs"], before["outputs"])
    assert not hasattr(task, "state_dict")


def test_evaluation_has_the_plain_loss_and_asks_the_teacher_once() -> None:
    task, model, batch, loss = made("multiclass")
    model.eval()
    for _ in range(3):
        step = task.step(model, batch, loss)
    assert torch.equal(step.loss, Supervised().step(model, batch, loss).loss)
    assert len(task.teacher.calls) == 1  # to see whether its outputs fit


def test_the_criterion_is_called_for_the_student_only() -> None:
    task, model, batch, _ = made("multiclass")
    calls = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(output.requires_grad)
        return F.cross_entropy(output, target)

    task.step(model, batch, loss)
    assert calls == [True]


def test_random_numbers_are_left_to_the_student() -> None:
    task, model, batch, loss = made("multiclass")
    model.dropout.p = 0.5
    torch.manual_seed(3)
    step = task.step(model, batch, loss)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(Supervised().step(model, batch, loss).preds, step.preds)
    assert torch.equal(torch.rand(1), after)


def test_a_copy_shares_the_teacher() -> None:
    task, model, batch, loss = made("multiclass")
    other, its_model = copy.deepcopy((task, model))
    assert other.teacher is task.teacher
    assert other.task is not task.task
    assert torch.equal(other.step(its_model, batch, loss).loss, task.step(model, batch, loss).loss)


@pytest.mark.parametrize("training", [True, False])
def test_a_teacher_of_other_classes_is_refused(training) -> None:
    task = Distillation(Supervised(), Table(6, 7), kind="multiclass")
    batch = CASES["multiclass"][1]
    with pytest.raises(UserError, match="finetune.distill.teacher: the teacher's outputs are not of the") as caught:
        task.step(student(6, 4).train(training), (torch.zeros(6, 1), batch), nn.CrossEntropyLoss())
    assert "(6, 4)" in str(caught.value)
    assert "(6, 7)" in str(caught.value)


def test_a_teacher_for_other_inputs_is_refused() -> None:
    task = Distillation(Supervised(), nn.Linear(9, 4), kind="multiclass")
    with pytest.raises(UserError, match="the teacher cannot take the batches of this run: RuntimeError"):
        task.step(nn.Linear(5, 4), (torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64)), nn.CrossEntropyLoss())


def test_running_out_of_memory_is_told_as_such() -> None:
    class Huge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")

    task = Distillation(Supervised(), Huge(), kind="multiclass")
    with pytest.raises(RuntimeError, match="not enough memory") as caught:
        task.step(nn.Linear(5, 4), (torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64)), nn.CrossEntropyLoss())
    assert not isinstance(caught.value, UserError)


def test_a_task_of_ones_own_serves_both() -> None:
    class Pairs(Task):
        """Two inputs, and a loss of its own."""

        def step(self, model, batch, criterion) -> StepOutput:
            output = model(batch["a"]) - model(batch["b"])
            return StepOutput(output.square().mean(), output, batch["y"])

    torch.manual_seed(0)
    batch = {"a": torch.randn(6, 3), "b": torch.randn(6, 3), "y": torch.zeros(6, 2)}
    teacher, model = nn.Linear(3, 2), nn.Linear(3, 2)
    step = Distillation(Pairs(), teacher, weight=1.0, kind="regression").step(model, batch, nn.MSELoss())
    ours, theirs = (m(batch["a"]) - m(batch["b"]) for m in (model, teacher))
    assert torch.allclose(step.loss, (ours - theirs).square().mean())

    class Silent(Task):
        def step(self, model, batch, criterion) -> StepOutput:
            return StepOutput(model(batch).mean())

    with pytest.raises(UserError, match="the task gives no outputs that a teacher's could be compared with"):
        Distillation(Silent(), teacher, kind="regression").step(model, batch["a"], nn.MSELoss())


def test_half_precision_outputs_are_compared_in_single() -> None:
    task, model, batch, loss = made("multiclass", weight=1.0)
    task.teacher.half()
    wanted = by_hand("multiclass", model.outputs, task.teacher.outputs, 2.0)
    assert task.step(model, batch, loss).loss.item() == pytest.approx(wanted, rel=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear = Distillation(Supervised(), nn.Linear(5, 4), kind="multiclass")
        step = linear.step(nn.Linear(5, 4), (torch.randn(6, 5), batch[1]), loss)
    assert step.loss.dtype == torch.float32


def test_extreme_logits_stay_finite() -> None:
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
    ("options", "message"),
    [
        ({"temperature": 0.0}, "finetune.distill.temperature: must be above 0"),
        ({"temperature": math.nan}, "finetune.distill.temperature: must be above 0"),
        ({"weight": 1.5}, "finetune.distill.weight: must be from 0 to 1"),
        ({"weight": -0.1}, "finetune.distill.weight: must be from 0 to 1"),
        ({"kind": "custom"}, "no distillation for such targets"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message) -> None:
    with pytest.raises(UserError, match=message):
        Distillation(Supervised(), nn.Linear(1, 1), **{"kind": "multiclass", **options})
