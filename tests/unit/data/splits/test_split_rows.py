from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.data.splits.sides import split_rows
from snugfit.errors import DataError, SettingError


@settings(max_examples=200, deadline=None)
@given(
    classes=st.lists(st.integers(0, 5), min_size=2, max_size=80),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
def test_the_two_sides_partition_the_rows_and_every_class_keeps_a_training_row(classes, fraction, seed):
    try:
        train, validation = split_rows(classes, fraction, seed)
    except DataError:
        assert max(Counter(classes).values()) == 1  # every class has one row, which it keeps
        return
    assert sorted(train + validation) == list(range(len(classes)))
    assert {classes[row] for row in train} == set(classes)
    assert validation
    wanted = max(round(fraction * len(classes)), 1)
    assert len(validation) == min(wanted, len(classes) - len(set(classes)))


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(2, 40), min_size=1, max_size=5), fraction=st.floats(0.05, 0.5))
def test_each_class_gives_its_share_to_within_one_row(sizes, fraction):
    classes = [name for name, size in enumerate(sizes) for _ in range(size)]
    drawn = Counter(classes[row] for row in split_rows(classes, fraction, 0)[1])
    for name, size in enumerate(sizes):
        assert abs(drawn[name] - fraction * size) <= 1


def test_the_seed_alone_decides():
    classes = ["a", "b"] * 50
    assert split_rows(classes, 0.2, 1) == split_rows(classes, 0.2, 1)
    assert split_rows(classes, 0.2, 1) != split_rows(classes, 0.2, 2)


def test_the_split_of_a_seed_never_changes():
    """A run resumed under a newer version must not validate on what it trained on."""
    assert split_rows([0] * 10 + [1] * 10, 0.2, 0)[1] == [1, 3, 14, 18]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_fraction_outside_0_and_1_is_refused(fraction):
    with pytest.raises(SettingError, match=r"data\.validation"):
        split_rows(["a", "b"], fraction, 0)


def test_too_few_rows_are_refused():
    with pytest.raises(DataError, match="2 rows are too few"):
        split_rows(["a", "b"], 0.5, 0)
