from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.trainer import Supervised, Task
from lightkit.trainer.tasks import Retrieval, fit_shape


def test_a_single_output_never_broadcasts_against_its_targets() -> None:
    x, y = torch.randn(6, 3), torch.randn(6)
    step = Supervised().step(nn.Linear(3, 1), (x, y), nn.MSELoss())
    assert step.preds is not None
    assert step.preds.shape == (6,)


@pytest.mark.parametrize(("output", "target"), [((6, 4), (6,)), ((6, 1), (6, 1)), ((6, 2), (6, 2))])
def test_other_shapes_are_left_alone(output: tuple[int, ...], target: tuple[int, ...]) -> None:
    assert fit_shape(torch.zeros(output), torch.zeros(target)).shape == output


def test_class_numbers_are_no_floats() -> None:
    assert fit_shape(torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64)).shape == (6, 1)


def test_the_base_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError):
        Task().step(nn.Identity(), None, nn.MSELoss())


def test_the_query_of_a_sample_goes_to_the_metrics() -> None:
    x, y, indexes = torch.randn(6, 3), torch.ones(6), torch.arange(6)
    step = Retrieval().step(nn.Linear(3, 1), (x, y, indexes), nn.MSELoss())
    assert step.metric_kwargs == {"indexes": indexes}
    with pytest.raises(UserError, match=r"(?s)number of a query.*\(x, y, indexes\).*tuple of 2"):
        Retrieval().step(nn.Linear(3, 1), (x, y), nn.MSELoss())
    with pytest.raises(UserError, match=r"tasks\.Retrieval is one"):
        Supervised().step(nn.Linear(3, 1), (x, y, indexes), nn.MSELoss())


@pytest.mark.parametrize(
    ("batch", "said"),
    [({"x": 1, "y": 2}, "dict of x, y"), ((1, 2, 3), "tuple of 3"), (torch.zeros(2, 4), "Tensor")],
)
def test_samples_that_are_no_pairs_want_a_task(batch: object, said: str) -> None:
    with pytest.raises(UserError, match=rf"(?s)no pairs of an input and a target.*{said}.*trainer\.task\._target_="):
        Supervised().step(nn.Identity(), batch, nn.MSELoss())


class Named(nn.Module):
    """Gives outputs by name: those of three members, and a penalty as several devices give it."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
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


def test_a_penalty_is_added_in_training() -> None:
    batch, loss = (torch.randn(6, 4), torch.arange(6) % 4), nn.CrossEntropyLoss()
    plain = Supervised().step(Named(), batch, loss)
    step = Supervised().step(Named("penalty"), batch, loss)
    torch.testing.assert_close(step.loss, plain.loss + 2.0)
    indexed = Retrieval().step(Named("members", "penalty"), (*batch, torch.arange(6)), loss)
    assert indexed.loss > plain.loss


def test_validation_takes_the_plain_loss() -> None:
    batch, loss = (torch.randn(6, 4), torch.arange(6) % 4), nn.CrossEntropyLoss()
    plain = Supervised().step(Named().eval(), batch, loss)
    assert torch.equal(Supervised().step(Named("members", "penalty").eval(), batch, loss).loss, plain.loss)
