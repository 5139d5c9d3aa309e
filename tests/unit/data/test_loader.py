"""The order of examples, and windows from any place of it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, dataloader, default_collate

from snugfit.core.batch import Batch
from snugfit.data.examples import Examples
from snugfit.data.loader import Collate, Loader
from snugfit.data.order import Order
from snugfit.data.texts.masked import MaskedTexts, Masks
from snugfit.data.texts.token_rows import FramedBlocks, JoinedArrays, TokenBlocks, TokenRows
from snugfit.data.texts.tokens import PadRight
from snugfit.errors import DataError, SnugfitError, WorkerDied

EXAMPLES = 11
WINDOW = 4
PER_EPOCH = 3


class Noisy(Dataset[dict[str, Tensor]]):
    """Draws from every global generator for each example; `act` may misbehave at an index."""

    def __init__(self, act: Callable[[int], Any] = lambda index: None) -> None:
        self.act = act

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.act(index)
        draws = [torch.rand(()).item(), np.random.rand(), random.random()]
        return {"index": torch.tensor(index), "draws": torch.tensor(draws, dtype=torch.float64)}


def masking_collate(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Draws once for the whole window, as a collator that masks words does."""
    stacked = {name: torch.stack([example[name] for example in examples]) for name in examples[0]}
    return {**stacked, "mask": torch.rand(len(examples), 2)}


def loader(dataset: Any = None, *, workers: int = 0, seed: int = 3, collate: Collate | None = None) -> Loader:
    dataset = Noisy() if dataset is None else dataset
    return Loader(dataset, Order(len(dataset), WINDOW, seed), collate, num_workers=workers)


def values(batches: list[Batch]) -> list[dict[str, Any]]:
    return [{**{k: v.tolist() for k, v in batch.data.items()}, "ids": batch.ids} for batch in batches]


@pytest.fixture
def quick_to_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch looks every 5 seconds whether a worker is alive: too long for a test."""
    look = dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(look, "__defaults__", (0.2,))


@pytest.mark.parametrize("examples", [1, 4, 11, 12])
def test_each_epoch_is_a_permutation_cut_into_windows_of_which_the_last_may_be_partial(examples: int) -> None:
    order = Order(examples, WINDOW, seed=5)
    count = order.windows_per_pass
    epochs = []
    for epoch in range(3):
        windows = [order.window(epoch * count + place) for place in range(count)]
        assert [len(window) for window in windows[:-1]] == [WINDOW] * (count - 1)
        assert len(windows[-1]) == examples - WINDOW * (count - 1)
        assert {epoch_of for window in windows for epoch_of, _ in window} == {epoch}
        epochs.append([index for window in windows for _, index in window])
        assert sorted(epochs[-1]) == list(range(examples))
    if examples > WINDOW:
        assert epochs[0] != epochs[1] != epochs[2] != sorted(epochs[2])


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    def order(seed: int) -> list[list[tuple[int, int]]]:
        made = Order(EXAMPLES, WINDOW, seed)
        return [made.window(number) for number in range(2 * PER_EPOCH)]

    torch.manual_seed(1)
    first = order(seed=5)
    torch.manual_seed(2)
    assert order(seed=5) == first
    assert order(seed=6) != first


def test_a_window_is_the_same_wherever_one_starts_and_in_whatever_order_one_asks() -> None:
    forwards, backwards = Order(EXAMPLES, WINDOW, 5), Order(EXAMPLES, WINDOW, 5)
    numbers = range(4 * PER_EPOCH)
    assert {n: forwards.window(n) for n in numbers} == {n: backwards.window(n) for n in reversed(numbers)}


@pytest.mark.parametrize("start", [1, 3, 4])
def test_starting_anywhere_gives_the_windows_of_the_whole_run(start: int) -> None:
    whole = values(list(loader(collate=masking_collate).windows(0, 7)))
    assert values(list(loader(collate=masking_collate).windows(start, 7))) == whole[start:]


def test_workers_change_neither_the_windows_nor_what_their_examples_and_collate_draw() -> None:
    alone = values(list(loader(collate=masking_collate).windows(1, 7)))
    assert values(list(loader(workers=2, collate=masking_collate).windows(1, 7))) == alone


def test_draws_depend_on_seed_epoch_and_index() -> None:
    def draws(seed: int) -> dict[tuple[int, int], list[float]]:
        found = {}
        for number, batch in enumerate(loader(seed=seed).windows(0, 2 * PER_EPOCH)):
            for index, row in zip(batch.ids, batch.data["draws"].tolist(), strict=True):
                found[number // PER_EPOCH, index] = row
        return found

    first = draws(seed=3)
    # each of the three generators gives another number for each example of each epoch, and for another seed
    for numbers in zip(*first.values(), *draws(seed=4).values(), strict=True):
        assert len(set(numbers)) == 4 * EXAMPLES


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_draws_other_numbers_for_each_window_whatever_was_drawn_before(workers: int) -> None:
    examples = [Noisy()[index] for index in range(EXAMPLES)]  # a list: reading it draws nothing

    def masks(global_seed: int) -> list[Any]:
        torch.manual_seed(global_seed)
        made = loader(examples, workers=workers, collate=masking_collate).windows(0, 2 * PER_EPOCH)
        return [window["mask"] for window in values(list(made))]

    assert masks(1) == masks(2)
    assert len({mask[0][0] for mask in masks(1)}) == 2 * PER_EPOCH


@pytest.mark.parametrize("workers", [0, 2])
def test_global_random_state_is_untouched(workers: int) -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    for _ in loader(workers=workers, collate=masking_collate).windows(0, 4):
        after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]


def test_a_tensor_dataset_gives_the_same_rows_as_its_examples_one_by_one() -> None:
    tensors = TensorDataset(torch.randn(EXAMPLES, 2), torch.arange(EXAMPLES))
    rows = [tensors[index] for index in range(EXAMPLES)]
    for fast, slow in zip(loader(tensors).windows(0, 4), loader(rows).windows(0, 4), strict=True):
        assert fast.ids == slow.ids == tuple(fast.data[1].tolist())
        assert all(torch.equal(one, other) for one, other in zip(fast.data, slow.data, strict=True))


def tokens(kind: str) -> Any:
    """Return examples of tokens in arrays, as sources of each kind have them."""
    source = np.random.default_rng(0)
    made = [
        {
            "input_ids": [1, *source.integers(5, 300, length).tolist(), 2],
            "attention_mask": [1] * (length + 2),
            "labels": length,
        }
        for length in (3, 0, 7, 1, 12, 5, 2, 9, 4, 6, 8)
    ]
    several = [{**example, "labels": [0.5, float(example["labels"])]} for example in made]
    texts = TokenRows.of(
        {name: example[name] for name in ("input_ids", "attention_mask")} for example in made
    )
    masks = Masks(mask=3, special=np.array([0, 1, 2, 3]), others=np.arange(5, 300))
    rows: dict[str, Any] = {
        "labels": TokenRows.of(made).at(range(10, -1, -1)),
        "several labels": TokenRows.of([{**example, "labels": 0} for example in made]).with_values(
            labels=[example["labels"] for example in several]
        ),
        "blocks": TokenBlocks(texts, 7),
        "sources": JoinedArrays([texts.at(range(4)), FramedBlocks(TokenBlocks(texts, 7), (1,), (2,))]),
        "masked": texts,
        "masked for validation": texts,
    }
    examples = Examples(rows[kind], "rows", range(len(rows[kind])))
    return {
        "masked": MaskedTexts(examples, masks),
        "masked for validation": MaskedTexts(examples, masks, seed=4),
    }.get(kind, examples)


@pytest.mark.parametrize(
    "kind", ["labels", "several labels", "blocks", "sources", "masked", "masked for validation"]
)
def test_windows_of_tokens_are_those_that_padding_makes_of_their_examples(kind: str) -> None:
    dataset, pad = tokens(kind), PadRight({"input_ids": 9, "labels": -100})
    order = Order(len(dataset), 4, 7, windows=5)
    at_once, one_by_one = Loader(dataset, order, pad), Loader(dataset, order, lambda rows: pad(rows))
    state = torch.get_rng_state()
    for ours, expected in zip(at_once.windows(0, 5), one_by_one.windows(0, 5), strict=True):
        assert ours.ids == expected.ids and ours.lengths == expected.lengths
        assert {*ours.data} == {*expected.data}
        for name, tensor in expected.data.items():
            assert ours.data[name].dtype == tensor.dtype, name
            assert torch.equal(ours.data[name], tensor), name
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_example_is_named_with_what_it_said_and_where(workers: int) -> None:
    def act(index: int) -> None:
        if index == 7:
            raise LookupError("no such image")

    with pytest.raises(DataError) as raised:
        list(loader(Noisy(act), workers=workers).windows(0, PER_EPOCH))
    message = str(raised.value)
    assert message.startswith("data: row 7 (training) cannot be loaded: LookupError: no such image (")
    assert "test_loader.py:" in message
    assert "\n" not in message


@pytest.mark.parametrize("workers", [0, 2])
def test_our_own_error_of_an_example_comes_through_as_it_is(workers: int) -> None:
    def act(index: int) -> None:
        raise DataError.from_text("data: row 3 has no text.")

    with pytest.raises(DataError, match=r"^data: row 3 has no text\.$"):
        list(loader(Noisy(act), workers=workers).windows(0, 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_examples_that_do_not_fit_into_one_batch_are_named(workers: int) -> None:
    ragged = [torch.zeros(1 + index % 2) for index in range(EXAMPLES)]
    with pytest.raises(
        DataError, match=r"^data: examples cannot be put into one batch: .*They are row \d+ \(training\), row"
    ) as raised:
        list(loader(ragged, workers=workers).windows(0, PER_EPOCH))
    assert "\n" not in str(raised.value)


def test_no_examples_are_refused() -> None:
    with pytest.raises(DataError, match="no examples"):
        Order(0, WINDOW)


LATE = Order(EXAMPLES, WINDOW, seed=3).window(PER_EPOCH - 1)[0][1]


def killed_worker(index: int) -> None:
    if index == LATE and multiprocessing.parent_process() is not None:
        time.sleep(0.3)  # until the windows before have left the worker
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("quick_to_notice")
def test_a_killed_worker_is_one_clear_error() -> None:
    with pytest.raises(WorkerDied, match=r"^data: a worker process failed: .* plan\.num_workers") as raised:
        list(loader(Noisy(killed_worker), workers=2).windows(0, PER_EPOCH))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("quick_to_notice")
def test_a_killed_worker_raises_nowhere_but_in_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch installs its handler, which raises wherever the main thread is, with the first workers of a process
    monkeypatch.setattr(torch.utils.data._utils.signal_handling, "_SIGCHLD_handler_set", False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    windows = loader(Noisy(killed_worker), workers=2).windows(0, PER_EPOCH)
    first = next(windows)
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert first.rows == WINDOW
    with pytest.raises(WorkerDied):
        list(windows)


@pytest.mark.usefixtures("quick_to_notice")
def test_windows_of_dead_workers_can_be_loaded_in_the_main_process() -> None:
    asked = []
    rescued = loader(Noisy(killed_worker), workers=2).windows(0, 7, rescue=lambda: not asked.append(True))
    assert values(list(rescued)) == values(list(loader().windows(0, 7)))
    assert asked == [True]


@pytest.mark.parametrize("broken", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_a_transfer_that_breaks_off_is_the_same_error(
    broken: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(iterator: Any) -> Any:
        raise type(broken)(*broken.args)  # a new one: it keeps the iterator, and so its workers, alive

    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter, "__next__", reset)
    with pytest.raises(WorkerDied, match=type(broken).__name__) as raised:
        next(loader(workers=1).windows(0, 2))
    assert isinstance(raised.value, SnugfitError)


def test_a_collate_of_ones_own_is_used_for_a_tensor_dataset_too() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(4.0), torch.arange(4))
    loader = Loader(
        dataset, Order(4, 4, shuffle=False), lambda rows: {"x": torch.stack([x for x, _ in rows]) + 1}
    )
    (window,) = loader.windows(0, 1)
    assert window.data["x"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_windows_that_are_loaded_in_this_process_are_pinned_where_a_gpu_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor.shape[0]) or tensor)
    given = Loader(Noisy(), Order(EXAMPLES, WINDOW, 3), None, pin=True)
    assert len(list(given.windows(0, 2))) == 2
    assert pinned == [WINDOW] * 4, "two tensors of two windows"
    pinned.clear()
    list(loader().windows(0, 2))
    Batch.of((torch.ones(2, 2, device="meta"), torch.ones(2, 2).to_sparse())).pin_memory()
    assert not pinned, "not for a CPU, and neither what is on a device nor what is sparse"


@pytest.mark.parametrize("columns", [2, 3000], ids=["small windows", "large windows"])
def test_windows_of_tensors_are_those_that_a_loader_of_examples_makes(columns: int) -> None:
    """Windows that are loaded at once are the same rows in tensors of their own, wherever one begins."""
    data = TensorDataset(torch.randn(EXAMPLES, columns), torch.arange(EXAMPLES))
    examples = [data[index] for index in range(EXAMPLES)]
    count = 2 * PER_EPOCH + 1
    expected = list(Loader(examples, Order(EXAMPLES, WINDOW, 5)).windows(0, count))
    for start in (0, 1, PER_EPOCH):
        windows = list(Loader(data, Order(EXAMPLES, WINDOW, 5)).windows(start, count))
        for window, plain in zip(windows, expected[start:], strict=True):
            assert (window.ids, window.rows, window.lengths) == (plain.ids, plain.rows, plain.lengths)
            assert all(torch.equal(*pair) for pair in zip(window.data, plain.data, strict=True))
    storages = {window.data[0].untyped_storage().data_ptr() for window in windows}
    assert len(storages) == len(windows)


def asked_for_one(tensor: Tensor) -> int:
    """Return how many windows are loaded where one is asked for."""
    order = Order(64, 4, 5)
    windows = Loader(TensorDataset(tensor), order).windows(0, 16)
    asked: list[int] = []
    rows = order.rows
    order.rows = lambda number: asked.append(number) or rows(number)  # type: ignore[method-assign, func-returns-value]
    next(windows)
    return len(asked)


def test_dicts_of_tensors_are_stacked_as_torch_s_collate_stacks_them() -> None:
    examples = [{"x": torch.rand(3), "labels": torch.tensor(row), "more": row} for row in range(EXAMPLES)]
    for names in (("x", "labels"), ("x", "labels", "more")):
        data = [{name: example[name] for name in names} for example in examples]
        for window in loader(data).windows(0, PER_EPOCH):
            expected = default_collate([data[index] for index in window.ids])
            assert window.data.keys() == expected.keys()
            assert all(torch.equal(window.data[name], expected[name]) for name in expected)


def test_small_windows_alone_are_loaded_ahead() -> None:
    assert asked_for_one(torch.zeros(64, 8)) == 16
    assert asked_for_one(torch.zeros(64, 4096)) == 4  # of 64 KiB each
    assert asked_for_one(torch.zeros(64, 1 << 15)) == 1


def test_nothing_is_loaded_ahead_of_what_others_may_write_to_unseen() -> None:
    given = torch.zeros(64, 8)
    given.numpy()
    shared = torch.zeros(64, 8).share_memory_()
    with torch.inference_mode():
        uncounted = torch.zeros(64, 8)
    taken = torch.from_numpy(np.zeros((64, 8), dtype=np.float32))
    assert [asked_for_one(each) for each in (given, shared, uncounted, taken)] == [1, 1, 1, 1]


def add_by_torch(data: TensorDataset) -> None:
    data.tensors[0][:, 1] += 1


def add_by_numpy(data: TensorDataset) -> None:
    data.tensors[0].numpy()[:, 1] += 1


def replace_tensors(data: TensorDataset) -> None:
    data.tensors = (data.tensors[0] + torch.tensor([0.0, 1.0]),)


@pytest.mark.parametrize("write", [add_by_torch, add_by_numpy, replace_tensors])
def test_a_window_has_its_rows_as_they_are_when_it_is_asked_for(
    write: Callable[[TensorDataset], None],
) -> None:
    data = TensorDataset(torch.zeros(64, 2))
    written = []
    for number, window in enumerate(Loader(data, Order(64, 4, 5)).windows(0, 40)):
        written.append(window.data[0][:, 1].unique().tolist())
        if number in (1, 2, 20):
            write(data)
    assert written == [[0.0]] * 2 + [[1.0]] + [[2.0]] * 18 + [[3.0]] * 19


@pytest.mark.parametrize("of_rows", [True, False])
def test_rows_that_require_a_gradient_collect_none(of_rows: bool) -> None:
    points = torch.randn(EXAMPLES, 3, requires_grad=True)
    labels = torch.zeros(EXAMPLES, dtype=torch.long)
    dataset: Any = list(zip(points, labels, strict=True)) if of_rows else TensorDataset(points, labels)
    order = Order(EXAMPLES, WINDOW, seed=0)
    for window in Loader(dataset, order).windows(0, PER_EPOCH):
        assert not window.data[0].requires_grad
        torch.testing.assert_close(window.data[0], points.detach()[list(window.ids)])


def test_a_collate_that_fails_is_said_to_be_corrected_and_a_missing_one_to_be_given() -> None:
    def broken(examples: list[Any]) -> Any:
        raise ValueError("no such key")

    uneven = [torch.zeros(length) for length in range(1, 1 + EXAMPLES)]
    order = Order(EXAMPLES, WINDOW, seed=0)
    with pytest.raises(DataError, match=r"no such key.* Correct collate\. They are"):
        next(iter(Loader(uneven, order, collate=broken).windows(0, 1)))
    with pytest.raises(DataError, match=r"Give a collate function\. They are"):
        next(iter(Loader(uneven, order).windows(0, 1)))
