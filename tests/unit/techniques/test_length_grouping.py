from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch, split
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.techniques import find
from snugfit.techniques.placement.length_grouping import LengthGrouping, by_length
from tests.laws import problems
from tests.unit.techniques.settings import MOMENT, context

LENGTHS = (2, 9, 4, 9, 3)


def window(lengths: tuple[int, ...] = LENGTHS) -> Batch:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()
    ids = torch.arange(1, len(lengths) + 1).unsqueeze(1) * mask
    data = {"input_ids": ids, "attention_mask": mask, "names": [f"row {row}" for row in range(len(lengths))]}
    drawn = torch.arange(float(len(lengths)))
    return Batch.of(data, ids=range(10, 10 + len(lengths))).with_extras(drawn=drawn)


def arranged(batch: Batch) -> Batch:
    seam = LengthGrouping().seams(context()).batch
    assert seam is not None
    return seam(batch, MOMENT)


def test_all_that_belongs_to_a_row_goes_with_it() -> None:
    found = arranged(window())
    order = [1, 3, 2, 4, 0]
    assert found.lengths == (9, 9, 4, 3, 2)
    assert found.ids == tuple(10 + row for row in order)
    assert found.data["names"] == [f"row {row}" for row in order]
    assert found.data["input_ids"][:, 0].tolist() == [row + 1 for row in order]
    assert found.extras["drawn"].tolist() == order


@pytest.mark.parametrize("group", [1, 2, 3])
def test_neighbours_that_are_mixed_stay_together_and_an_incomplete_group_stays_last(group: int) -> None:
    lengths = [5, 2, 7, 7, 1, 9, 3, 8]
    order = by_length(lengths, group)
    assert sorted(order) == list(range(8))
    whole = 8 - 8 % group
    for start in range(0, whole, group):
        first = order[start]
        assert first % group == 0 and order[start : start + group] == list(range(first, first + group))
    assert order[whole:] == list(range(whole, 8))
    longest = [max(lengths[row] for row in order[s : s + group]) for s in range(0, whole, group)]
    assert longest == sorted(longest, reverse=True)


def test_mixed_pairs_move_as_pairs() -> None:
    paired = replace(window((2, 3, 9, 4)), group=2)
    assert arranged(paired).ids == (12, 13, 10, 11)


def test_each_micro_batch_is_as_wide_as_its_own_longest() -> None:
    def widths(batch: Batch) -> list[int]:
        return [batch.select(rows).data["input_ids"].shape[1] for rows in split(5, 2)]

    assert widths(window()) == [9, 9, 3]
    assert widths(arranged(window())) == [9, 4, 2]


@pytest.mark.parametrize("make", [problems.bert, problems.gpt2, problems.reader])
def test_a_model_sees_fewer_tokens_and_makes_the_same_update(make: problems.Maker) -> None:
    problem = make(())
    given = problem.windows()[0]
    tokens, gradients = {}, {}
    for techniques in ((), (LengthGrouping(),)):
        step = problems.make_step(problem, techniques, micro_batch=2)
        with seen(step.model) as shapes:
            step(given)
        tokens[techniques] = sum(rows * width for rows, width in shapes)
        gradients[techniques] = problems.gradients(step)
    plain, grouped = tokens.values()
    assert grouped < plain
    assert problems.relative_error(*gradients.values()) <= 1e-10


class seen:
    """Collects the shapes of the token ids that a model is given."""

    def __init__(self, model: nn.Module) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.hook = model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, model: nn.Module, args: Any, kwargs: dict[str, Tensor]) -> None:
        self.shapes.append(tuple(kwargs["input_ids"].shape))

    def __enter__(self) -> list[tuple[int, ...]]:
        return self.shapes

    def __exit__(self, *error: object) -> None:
        self.hook.remove()


def test_hard_examples_are_the_same_ones() -> None:
    problem = problems.reader(())
    given = problem.windows()[0]
    hard = find("hard_examples").example()
    found = []
    for techniques in ((hard,), (hard, LengthGrouping())):
        step = problems.make_step(problem, techniques, micro_batch=2)
        step(given)
        found.append(problems.gradients(step))
    assert problems.relative_error(*found) <= 1e-10


def test_rows_of_unknown_length_are_refused() -> None:
    without = Batch.of({"input_ids": torch.ones(3, 4, dtype=torch.int64)})
    with pytest.raises(
        SettingError, match=r"^length_grouping: the lengths of the 3 rows are not known.*'attention_mask'"
    ):
        arranged(without)


def test_a_window_whose_padding_cannot_be_cut_is_left_alone_and_said_so() -> None:
    wide = window()
    wide = Batch.of({**wide.data, "features": torch.randn(5, 9)})
    with pytest.warns(SnugfitWarning, match="length_grouping: does nothing"):
        assert arranged(wide) is wide
