from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.losses import ByHead, FocalLoss, SupervisedContrastive, TokenCrossEntropy, mean_weight
from lightkit.metrics import SplitMetrics
from lightkit.metrics.split import AllBut


def test_token_cross_entropy_is_the_mean_over_all_tokens():
    logits, target = torch.randn(3, 4, 7), torch.randint(7, (3, 4))
    expected = torch.stack([F.cross_entropy(logits[i], target[i]) for i in range(3)]).mean()
    assert torch.allclose(TokenCrossEntropy()(logits, target), expected)
    smooth = F.cross_entropy(logits.reshape(-1, 7), target.reshape(-1), label_smoothing=0.1)
    assert torch.allclose(TokenCrossEntropy(label_smoothing=0.1)(logits, target), smooth)


@pytest.mark.parametrize("soft", [False, True])
def test_focal_loss_without_focus_is_cross_entropy(soft):
    logits = torch.randn(6, 4)
    target = torch.randn(6, 4).softmax(1) if soft else torch.randint(4, (6,))
    assert torch.allclose(FocalLoss(gamma=0)(logits, target), F.cross_entropy(logits, target))


def test_focal_loss_by_hand():
    logits, target = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    chance = logits.softmax(1)[:, 0]
    assert torch.allclose(FocalLoss(gamma=2)(logits, target), (-((1 - chance) ** 2) * chance.log()).mean())
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    right = torch.where(target == 1, logits.sigmoid(), 1 - logits.sigmoid())
    weight = torch.where(target == 1, 0.25, 0.75)
    expected = (-weight * (1 - right) ** 1.5 * right.log()).mean()
    assert torch.allclose(FocalLoss(gamma=1.5, alpha=0.25, multilabel=True)(logits, target), expected)


@pytest.mark.parametrize("multilabel", [False, True])
def test_focal_loss_of_what_is_entirely_right_has_finite_gradients(multilabel):
    logits, target = torch.tensor([[200.0, -200.0]], requires_grad=True), torch.tensor([[1.0, 0.0]])
    loss = FocalLoss(gamma=0.5, multilabel=multilabel)(logits, target)
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


def test_focal_loss_agrees_with_torchvision():
    ops = pytest.importorskip("torchvision.ops")
    logits, target = torch.randn(5, 3), torch.randint(2, (5, 3)).float()
    expected = ops.sigmoid_focal_loss(logits, target, alpha=0.25, gamma=2.0, reduction="mean")
    assert torch.allclose(FocalLoss(alpha=0.25, multilabel=True)(logits, target), expected)


def test_supervised_contrastive_by_hand():
    embeddings, target = torch.randn(6, 5), torch.tensor([0, 0, 1, 1, 1, 2])
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    terms = []
    for i in range(6):
        others = [j for j in range(6) if j != i]
        partners = [j for j in others if target[j] == target[i]]
        total = sum(torch.exp(unit[i] @ unit[j] / 0.2) for j in others)
        logs = [torch.log(torch.exp(unit[i] @ unit[p] / 0.2) / total) for p in partners]
        terms.append(-sum(logs) / max(len(partners), 1))
    expected = sum(float(term) for term in terms) / 6
    assert SupervisedContrastive(0.2)(embeddings, target).item() == pytest.approx(expected, rel=1e-5)


def test_the_contrastive_loss_of_two_views_is_that_of_simclr():
    first, second = (F.normalize(torch.randn(5, 4), dim=1) for _ in range(2))
    both = torch.cat([first, second])
    terms = []
    for i in range(10):  # equation 1 of https://arxiv.org/abs/2002.05709
        others = sum(torch.exp(both[i] @ both[k] / 0.5) for k in range(10) if k != i)
        terms.append(-torch.log(torch.exp(both[i] @ both[(i + 5) % 10] / 0.5) / others))
    loss = SupervisedContrastive(0.5)(3 * both, torch.arange(5).repeat(2))
    assert loss.item() == pytest.approx(float(sum(terms)) / 10, rel=1e-5)


def test_losses_by_head_add_up_by_weights_that_are_given_or_learnt():
    outputs, targets = {"a": torch.ones(4), "b": torch.zeros(4)}, {"a": torch.full((4,), 3.0), "b": torch.ones(4)}
    losses = {"a": nn.MSELoss(), "b": nn.L1Loss()}
    assert ByHead(losses)(outputs, targets).item() == 5
    assert ByHead(losses, {"a": 0.5})(outputs, targets).item() == 3
    learnt = ByHead(losses, "uncertainty")
    assert learnt(outputs, targets).item() == 5
    with torch.no_grad():
        learnt.log_variances["a"].fill_(math.log(4))
    value = learnt(outputs, targets)
    value.backward()
    assert value.item() == pytest.approx(4 / 4 + math.log(4) / 2 + 1)
    gradients = {name: parameter.grad.item() for name, parameter in learnt.log_variances.items()}
    assert gradients == pytest.approx({"a": -1 + 0.5, "b": -1 + 0.5}), "0 where the variance is the loss"
    with pytest.raises(UserError, match=r"(?s)no such output.*\['b'\].*choices"):
        learnt({"a": outputs["a"]}, targets)


@pytest.mark.parametrize("count", [1, 2])
def test_supervised_contrastive_without_partners_has_finite_gradients(count):
    embeddings = torch.randn(count, 3, requires_grad=True)
    SupervisedContrastive()(embeddings, torch.arange(count)).backward()
    assert torch.isfinite(embeddings.grad).all()


@pytest.mark.parametrize("loss", [TokenCrossEntropy(), FocalLoss(), FocalLoss(multilabel=True)])
def test_the_loss_is_the_mean_over_samples(loss):
    if isinstance(loss, TokenCrossEntropy):
        output, target = torch.randn(8, 5, 3), torch.randint(3, (8, 5))
    else:
        output, target = torch.randn(8, 3), torch.randint(2, (8, 3)).float()
    parts = (3 * loss(output[:3], target[:3]) + 5 * loss(output[3:], target[3:])) / 8
    assert torch.allclose(loss(output, target), parts)


@pytest.mark.parametrize(
    ("loss", "output", "target"),
    [
        (TokenCrossEntropy(), (2, 3, 4), (2, 4)),
        (TokenCrossEntropy(), (2, 3), (2,)),
        (FocalLoss(), (4, 3), (3,)),
        (FocalLoss(multilabel=True), (4, 1), (4,)),
        (SupervisedContrastive(), (4, 3), (4, 1)),
    ],
)
def test_shapes_that_would_broadcast_are_refused(loss, output, target):
    with pytest.raises(UserError, match="output and target don't belong together"):
        loss(torch.zeros(output), torch.zeros(target, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TokenCrossEntropy(1.5), r"label_smoothing: out of range"),
        (lambda: FocalLoss(gamma=-1), r"gamma: out of range"),
        (lambda: FocalLoss(gamma=float("inf")), r"gamma: out of range"),
        (lambda: FocalLoss(alpha=2.0, multilabel=True), r"alpha: out of range"),
        (lambda: FocalLoss(alpha=0.3), "alpha weighs positive against negative labels"),
        (lambda: SupervisedContrastive(0.0), r"temperature: out of range"),
        (lambda: ByHead({}), "losses: there is no head"),
        (lambda: ByHead({"a": nn.MSELoss()}, {"b": 1}), r"weights: there is no such head"),
    ],
)
def test_bad_arguments(make, match):
    with pytest.raises(UserError, match=match):
        make()


def test_contrastive_loss_comes_down_to_its_lowest_value() -> None:
    loss, target = SupervisedContrastive(), torch.tensor([0, 0, 0, 1, 1, 2])
    corners = torch.eye(3)[target]
    assert float(loss(corners, target)) == pytest.approx(loss.lowest(target), abs=1e-3)
    assert loss.lowest(torch.tensor([0, 1, 2])) == 0.0


class Halved(nn.Module):
    """A loss of one's own that divides by weights of its own."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.sum(1) * (target + 1)).sum() / (target + 1).sum()

    def mean_weight(self, output: Tensor, target: Tensor) -> Tensor:
        return (target + 1).sum()


WEIGHT = torch.tensor([0.2, 1.0, 7.0])


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (nn.CrossEntropyLoss(weight=WEIGHT), (150, 3)),
        (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2, ignore_index=1), (150, 3)),
        (nn.CrossEntropyLoss(ignore_index=2), (150, 3)),
        (nn.CrossEntropyLoss(), (150, 3)),
        (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=0), (150, 3, 2, 4)),
        (nn.NLLLoss(weight=WEIGHT), (150, 3)),
        (nn.CrossEntropyLoss(weight=WEIGHT), "shares"),
        (nn.BCEWithLogitsLoss(pos_weight=WEIGHT), "labels"),
        (partial(F.cross_entropy, weight=WEIGHT, ignore_index=1), (150, 3)),
        (TokenCrossEntropy(), "tokens"),
        (Halved(), (150, 3)),
    ],
)
def test_the_mean_of_batches_is_the_loss_of_all_rows(loss, shape, batch):
    draw = torch.Generator().manual_seed(0)
    sizes = {"tokens": (150, 5, 3), "shares": (150, 3), "labels": (150, 3)}
    output = torch.randn(sizes.get(shape, shape), generator=draw)
    target = torch.randint(3, (150, *output.shape[2:]), generator=draw)
    if shape == "tokens":
        target = torch.randint(3, (150, 5), generator=draw)
        target[::3, 2:] = -100
        target[10:20] = -100
    elif isinstance(shape, str):
        target = output.flip(0).softmax(1) if shape == "shares" else (output.flip(0) > 0).float()
    metrics = SplitMetrics("val", block=3)
    for own, truth in zip(output.split(batch), target.split(batch)):
        metrics.update(own, truth, loss(own, truth), len(own), weight=mean_weight(loss, own, truth))
        state, metrics = metrics.state_dict(), SplitMetrics("val", block=3)
        metrics.load_state_dict(state)
    assert metrics.compute()["val/loss"] == pytest.approx(float(loss(output, target)), rel=1e-6)


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_targets_that_are_counted_later_give_the_same_state(shape):
    loss, batches = nn.CrossEntropyLoss(ignore_index=1), [torch.randint(3, shape) for _ in range(4)]
    batches[-1] = batches[-1][:2]
    kinds = {later: SplitMetrics("val", block=3) for later in (None, AllBut)}
    for target in batches:
        output = torch.randn(len(target), 3, *shape[1:])
        for later, metrics in kinds.items():
            metrics.update(
                output, target, loss(output, target), len(target), None, mean_weight(loss, output, target, later)
            )
    now, later = (metrics.state_dict() for metrics in kinds.values())
    torch.testing.assert_close(later, now, rtol=0, atol=0, equal_nan=True)
    assert type(later["queue"][0][5]) is torch.Tensor
    assert float(now["loss_weight"]) == sum(int((target != 1).sum()) for target in batches[:3])


def test_what_a_task_hands_on_that_the_loss_did_not_see_weighs_by_samples():
    weighted = nn.CrossEntropyLoss(weight=WEIGHT)
    assert mean_weight(weighted, torch.randn(4, 5), torch.tensor([0, 4, 4, 1])) is None
    assert mean_weight(weighted, torch.randn(4), torch.tensor([0, 2, 2, 1])) is None
    assert mean_weight(weighted, None, None) is None
    assert (
        mean_weight(nn.CrossEntropyLoss(weight=WEIGHT, reduction="sum"), torch.randn(1, 3), torch.tensor([0])) is None
    )
    assert mean_weight(lambda output, target: output.sum(), torch.randn(1, 3), torch.tensor([0])) is None


def test_a_loss_may_carry_its_mean_weight_itself() -> None:
    own: Any = nn.MSELoss()
    own.mean_weight = lambda output, target: target.sum()
    assert mean_weight(own, None, torch.ones(3)) == 3
