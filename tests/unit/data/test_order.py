"""The order of a run whose windows differ in size: what tokens are known, what is refused, and its largest window."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from snugfit.core.job import Job
from snugfit.data.examples import Examples
from snugfit.data.loader import Loader
from snugfit.data.order import total_windows, training_order
from snugfit.data.sizes import token_counts
from snugfit.errors import SettingError

LENGTHS = [3, 9, 2, 5, 5, 1, 8, 2]


def texts() -> list[dict[str, Any]]:
    return [{"input_ids": [1] * length} for length in LENGTHS]


def job(**settings: Any) -> Job:
    return Job.of(**{"shuffle": False, "batch_tokens": 10, "epochs": 1, **settings})


class Lazy:
    """Rows that are made when they are asked for."""

    def __init__(self, lengths: list[int] | None = None) -> None:
        if lengths is not None:
            self.lengths = torch.tensor(lengths)

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return texts()[index]


@pytest.mark.parametrize(
    "example",
    [
        {"input_ids": [5, 6, 7]},
        {"input_ids": torch.tensor([5, 6, 7])},
        {"input_ids": [5, 6, 7, 0], "attention_mask": [1, 1, 1, 0]},
        {"input_ids": torch.tensor([0, 5, 6, 7]), "attention_mask": torch.tensor([False, True, True, True])},
        {"input_ids": [[5], [5, 6]]},
    ],
)
def test_tokens_are_those_that_are_read_of_all_sequences_of_an_example(example: dict[str, Any]) -> None:
    assert token_counts([example]) == [3]


def test_the_tokens_of_a_part_are_those_of_its_examples() -> None:
    assert token_counts(Subset(texts(), [6, 1])) == [8, 9]
    assert token_counts(Subset(Lazy(LENGTHS), [6, 1])) == [8, 9]


@pytest.mark.parametrize("data", [texts(), Lazy(LENGTHS), Examples(texts(), "a.txt", range(len(LENGTHS)))])
def test_windows_are_filled_in_order_up_to_their_tokens(data: Any) -> None:
    order = training_order(job(), data)
    windows = [[index for _, index in order.window(number)] for number in range(order.windows)]
    assert windows == [[0], [1], [2, 3], [4, 5], [6, 7]]
    assert total_windows(job(epochs=2.5), data) == 12


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (Lazy(), r"the data set \(Lazy\) says no tokens of its examples"),
        (TensorDataset(torch.zeros(4, 3)), r"the data set \(TensorDataset\) says no tokens"),
        ([*texts(), {"text": "a"}], "says no tokens"),
        (Lazy(LENGTHS[1:]), r"has 7 lengths for 8 examples"),
    ],
)
def test_data_whose_tokens_are_not_known_is_refused(data: Any, problem: str) -> None:
    with pytest.raises(
        SettingError, match=rf"^train\.batch_tokens: needs the tokens of each example.*{problem}"
    ):
        training_order(job(), data)


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [
        ({"batch_tokens": 8}, "train.batch_tokens: is 8"),
        ({"start_batch": 7}, "train.start_batch: is 7"),
        ({"batch_by_epoch": [20, 6]}, "train.batch_by_epoch: is 6"),
    ],
)
def test_an_example_with_more_tokens_than_a_window_is_refused_by_its_line(
    sizes: dict[str, Any], setting: str
) -> None:
    data = Examples(texts(), "a.jsonl", range(len(LENGTHS)), range(1, len(LENGTHS) + 1))
    with pytest.raises(SettingError, match=rf"^{setting} tokens, and a.jsonl:2 \(training\) has 9"):
        training_order(job(**sizes), data)


def test_the_largest_window_of_examples_is_one_that_has_grown() -> None:
    order = training_order(Job.of(global_batch=4, start_batch=1, batch_warmup=3, epochs=2), texts())
    assert len(order.window(0)) == 1
    assert len(order.largest_window()) == 4
    short = training_order(Job.of(global_batch=4, start_batch=1, batch_warmup=9, updates=4), texts())
    assert len(short.largest_window()) == 2  # the run ends before its windows have grown further


def test_the_largest_window_of_tokens_is_found_in_a_run_of_thousands() -> None:
    """By a plain loop over all windows: one of the last among five thousand is looked at too."""
    draw = random.Random(1)
    lengths = [draw.randint(1, 9) for _ in range(40)]
    rows = [{"input_ids": [1] * length} for length in lengths]
    order = training_order(job(updates=5000, shuffle=True, start_batch=9, batch_warmup=4990), rows)
    padded = []
    for number in range(order.windows):
        window = [lengths[index] for _, index in order.window(number)]
        padded.append(len(window) * max(window))
    expected = order.window(len(padded) - 1 - padded[::-1].index(max(padded)))
    longest_first = sorted(expected, key=lambda key: -lengths[key[1]])
    assert order.largest_window() == [(0, lengths.index(9)), *longest_first[1:]]


def test_epochs_are_cut_once_for_the_same_tokens_and_anew_for_others() -> None:
    data = Lazy(LENGTHS)
    cuts = training_order(job(start_batch=9, batch_warmup=3), data).cuts
    assert training_order(job(start_batch=9, batch_warmup=3), Lazy(LENGTHS)).cuts is cuts
    data.lengths = data.lengths.flip(0)
    assert training_order(job(start_batch=9, batch_warmup=3), data).cuts is not cuts


def test_the_largest_window_of_tokens_is_the_one_that_padding_makes_largest_with_the_longest_example() -> (
    None
):
    rows = [{"input_ids": [1] * length} for length in (9, 1, 1, 1, 1, 6, 8)]
    order = training_order(job(), rows)  # [9, 1], [1, 1, 1, 6] and [8]
    assert next(index for _, index in order.largest_window()) == 0
    assert len(order.largest_window()) == 4

    def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"lengths": torch.tensor([len(each["input_ids"]) for each in examples])}

    window, known = Loader(rows, order, collate).worst_window()
    assert known and window.data["lengths"].tolist() == [9, 1, 1, 9]  # the longest first and last
