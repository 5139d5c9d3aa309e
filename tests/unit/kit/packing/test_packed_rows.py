from __future__ import annotations

import pytest
import torch

from snugfit.kit.packing.packed_rows import Packed, first_fit

LENGTHS = (3, 5, 1, 0, 2)
CPU = torch.device("cpu")


def padded(*size: int) -> torch.Tensor:
    """Numbers that are nowhere the same, and nowhere 0 but at the padding."""
    made = torch.arange(1.0, 1 + len(LENGTHS) * 6).view(len(LENGTHS), 6)
    made = made * (torch.arange(6) < torch.tensor(LENGTHS).unsqueeze(1))
    return made.view(*made.shape, *(1 for _ in size)).expand(*made.shape, *size)


@pytest.mark.parametrize("one_row", [False, True])
@pytest.mark.parametrize("size", [(), (2,), (2, 3)])
def test_what_is_packed_and_unpacked_is_the_same_again(one_row: bool, size: tuple[int, ...]) -> None:
    layout = Packed.of(LENGTHS, 6, CPU, one_row)
    given = padded(*size)
    packed = layout.pack(given)
    assert packed.shape == ((1, 11, *size) if one_row else (3, 5, *size))
    assert layout.is_packed(packed) and not layout.is_packed(given)
    assert torch.equal(layout.unpack(packed), given)


def test_each_example_stands_whole_in_one_row_and_counts_from_zero() -> None:
    layout = Packed.of(LENGTHS, 6, CPU)
    packed = layout.pack(padded())
    assert layout.rows == ((1, 3), (0, 4), (2,))
    assert packed.tolist() == [[7, 8, 9, 10, 11], [1, 2, 3, 25, 26], [13, 0, 0, 0, 0]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]
    assert layout.segments.tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]]


def test_nobody_sees_a_token_of_another_example() -> None:
    layout = Packed.of(LENGTHS, 6, CPU)
    owner = layout.pack(torch.arange(1, 6).unsqueeze(1).expand(5, 6))
    owner = torch.where(owner == 0, torch.tensor(-1), owner)
    expected = owner.unsqueeze(2) == owner.unsqueeze(1)
    assert torch.equal(layout.same_example(), expected)


def test_gradients_go_through_real_tokens_alone() -> None:
    layout = Packed.of(LENGTHS, 6, CPU)
    given = padded(2).clone().requires_grad_()
    layout.unpack(2 * layout.pack(given)).sum().backward()
    real = (torch.arange(6) < torch.tensor(LENGTHS).unsqueeze(1)).unsqueeze(-1).expand(5, 6, 2)
    assert torch.equal(given.grad, 2.0 * real)


def test_no_row_is_longer_than_asked_and_no_example_is_lost() -> None:
    lengths = [
        int(length) for length in torch.randint(1, 50, (200,), generator=torch.Generator().manual_seed(0))
    ]
    rows = first_fit(lengths, 50)
    assert sorted(example for row in rows for example in row) == list(range(200))
    used = [sum(lengths[example] for example in row) for row in rows]
    assert max(used) <= 50
    assert len(rows) <= 11 / 9 * -(-sum(lengths) // 50) + 1
