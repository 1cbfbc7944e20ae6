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
