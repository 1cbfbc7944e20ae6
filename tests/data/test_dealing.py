"""Groups are dealt out whole, and each part has nearly its share."""

from __future__ import annotations

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data.groups import cut_in_order, deal

SHARES = [0.7, 0.1, 0.2]


def drawn(count: int, most: int, seed: int = 0) -> torch.Tensor:
    """Groups of 1 to `most` rows."""
    sizes = torch.randint(1, most + 1, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.arange(count).repeat_interleave(sizes)


@pytest.mark.parametrize("most", [1, 3, 40])
def test_no_group_is_torn_and_shares_hold(most: int) -> None:
    groups = drawn(300, most)
    part = deal(groups, None, SHARES, 3)
    for group in groups.unique():
        assert len(part[groups == group].unique()) == 1
    sizes = part.bincount(minlength=3) / len(groups)
    assert (sizes - torch.tensor(SHARES)).abs().max() <= 0.01
    assert torch.equal(deal(groups, None, SHARES, 3), part)
    assert not torch.equal(deal(groups, None, SHARES, 4), part)


def test_classes_keep_their_shares() -> None:
    groups = drawn(400, 3)
    classes = (torch.rand(len(groups), generator=torch.Generator().manual_seed(1)) < 0.15).long()
    part = deal(groups, classes, SHARES, 0)
    for own in (0, 1):
        sizes = part[classes == own].bincount(minlength=3) / (classes == own).sum()
        assert (sizes - torch.tensor(SHARES)).abs().max() <= 0.03


def test_a_large_group_goes_to_the_large_part_and_no_part_stays_empty() -> None:
    groups = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    assert deal(groups, None, SHARES, 0)[0] == 0
    for seed in range(5):
        assert len(deal(torch.arange(3).repeat_interleave(20), None, SHARES, seed).unique()) == 3


def test_single_rows_are_dealt_out_at_once_and_evenly() -> None:
    groups = torch.cat([torch.arange(100_000), torch.arange(50)])
    sizes = deal(groups, torch.arange(len(groups)) % 7, [1.0] * 5, 0).bincount()
    assert sizes.max() - sizes.min() <= 2


def test_cuts_in_order_move_to_the_next_border_of_groups() -> None:
    groups = torch.tensor([0] * 7 + [1] * 5 + [2] * 8)
    assert cut_in_order(groups, [10, 4, 6]) == [7, 5, 8]
    assert cut_in_order(torch.arange(20), [14, 2, 4]) == [14, 2, 4]
    assert cut_in_order(torch.tensor([0, 0, 1, 2, 2, 2]), [4, 1, 1]) == [2, 1, 3]


def test_groups_that_stand_mixed_cannot_be_cut_in_order() -> None:
    with pytest.raises(UserError, match="without tearing groups apart") as told:
        cut_in_order(torch.tensor([0, 1, 0, 1, 2]), [3, 1, 1])
    assert told.value.argument == "split.groups"
