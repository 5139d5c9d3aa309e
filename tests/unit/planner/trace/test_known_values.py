from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from snugfit.planner.trace.known_values import KnownValues, written
from snugfit.planner.trace.recorder import Recorder

MODE = FakeTensorMode(allow_non_fake_inputs=True)


def run(
    function: Callable[..., Any], *known: Tensor, unknown: tuple[int, ...] | None = None
) -> tuple[Any, list[str]]:
    """What a function of fake tensors gives, and what had to be bounded."""
    values = KnownValues(MODE)
    fakes = []
    for each in known:
        fakes.append(MODE.from_tensor(each))
        values.learn(fakes[-1], each.clone())
    if unknown is not None:
        fakes.append(MODE.from_tensor(torch.zeros(unknown)))
    with MODE, Recorder(values):
        return function(*fakes), values.bounded


def test_a_number_of_the_batch_is_the_true_one() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert run(lambda mask: mask.sum(1).max().item(), mask) == (2, [])
    assert run(lambda mask: mask.sum(1).tolist(), mask) == ([2, 1], [])
    assert run(lambda mask: bool((mask == 1).all()), mask) == (False, [])


def test_a_shape_that_the_batch_decides_is_the_true_one() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert run(lambda mask: mask.nonzero().shape, mask) == ((3, 2), [])
    assert run(lambda mask: mask[mask == 0].shape, mask) == ((3,), [])
    assert run(lambda mask: mask.unique().shape, mask) == ((2,), [])


def test_a_number_that_weights_decide_is_refused() -> None:
    with pytest.raises(DataDependentOutputException, match="_local_scalar_dense"):
        run(lambda x: x.sum().item(), unknown=(3,))


@pytest.mark.parametrize(
    ("function", "shape", "operator"),
    [
        (lambda x: x.nonzero(), (6, 2), "aten.nonzero.default"),
        (lambda x: x[x > 0], (6,), "aten.index.Tensor"),
        (lambda x: x.masked_select(x > 0), (6,), "aten.masked_select.default"),
        (lambda x: torch.where(x > 0)[1], (6,), "aten.nonzero.default"),
        (lambda x: x.unique(), (6,), "aten._unique2.default"),
    ],
)
def test_a_shape_that_weights_decide_is_the_largest_there_may_be(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], operator: str
) -> None:
    found, bounded = run(function, unknown=(2, 3))
    assert found.shape == shape and bounded == [operator]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda x: torch.isnan(x).any(), False),
        (lambda x: torch.isinf(x).any(), False),
        (lambda x: torch.isfinite(x).all(), True),
        (lambda x: (x == x).all(), True),
        (lambda x: (x.abs() == float("inf")).any(), False),
    ],
)
def test_weights_and_activations_are_taken_to_be_finite(
    question: Callable[[Tensor], Tensor], answer: bool
) -> None:
    assert run(lambda x: bool(question(x)), unknown=(3,)) == (answer, [])


def test_a_mask_that_the_model_makes_is_compared_as_it_is() -> None:
    def causal() -> bool:
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        return bool((mask == torch.full((4, 4), float("-inf")).triu(1)).all())

    assert run(causal) == (True, [])


def test_numbers_that_the_model_is_written_with_are_known() -> None:
    lengths = torch.tensor([3, 1])
    assert run(lambda: torch.tensor([3, 1]).max().item()) == (3, [])
    assert run(lambda: (lengths + 1).tolist()) == ([4, 2], [])


def test_a_tensor_that_is_not_fake_is_written_to_once_as_by_a_run() -> None:
    counts = torch.zeros(2, dtype=torch.int64)
    run(lambda: counts.add_(1))
    assert counts.tolist() == [1, 1]


def test_what_is_written_to_has_its_new_value() -> None:
    def written_to(numbers: Tensor) -> int:
        view = numbers[1:]
        view.add_(10)
        return int(numbers[1])

    numbers = torch.tensor([1, 2])
    assert run(written_to, numbers) == (12, [])
    assert numbers.tolist() == [1, 2]


def test_what_an_unknown_value_is_written_to_is_not_known_any_more_nor_are_its_views() -> None:
    def overwritten(numbers: Tensor, x: Tensor) -> int:
        view = numbers[1:]
        numbers[0] = (x > 0).sum()
        return int(view[0])

    with pytest.raises(DataDependentOutputException):
        run(overwritten, torch.tensor([1, 2]), unknown=(3,))


def test_what_is_drawn_at_random_is_not_known() -> None:
    with pytest.raises(DataDependentOutputException):
        run(lambda: int(torch.randint(5, (1,))))


def test_sequences_without_their_padding_have_the_rows_of_their_lengths() -> None:
    def packed(lengths: Tensor, x: Tensor) -> Any:
        return nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)

    found, bounded = run(packed, torch.tensor([2, 4, 1]), unknown=(3, 5, 8))
    assert found.data.shape == (7, 8) and found.batch_sizes.tolist() == [3, 2, 1, 1] and bounded == []


def test_sequences_of_unknown_lengths_are_taken_to_be_the_longest() -> None:
    def packed(x: Tensor) -> Any:
        return nn.utils.rnn.pack_padded_sequence(
            x, (x[:, 0, 0] > 0).long() + 1, batch_first=True, enforce_sorted=False
        )

    found, bounded = run(packed, unknown=(3, 5, 8))
    assert found.data.shape == (15, 8) and bounded == ["aten._pack_padded_sequence.default"]


def test_an_operator_says_what_it_writes_to() -> None:
    one, two, aten = torch.zeros(1), torch.zeros(1), torch.ops.aten
    assert [id(each) for each in written(aten.add_.Tensor, (one, two), {})] == [id(one)]
    assert [id(each) for each in written(aten.add.out, (one, two), {"out": two})] == [id(two)]
    assert [id(each) for each in written(aten._foreach_add_.Scalar, ([one, two], 1), {})] == [
        id(one),
        id(two),
    ]
    assert written(aten.add.Tensor, (one, two), {}) == []
