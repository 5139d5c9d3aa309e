"""Windows as messages of workers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.tree import leaves
from snugfit.data import loader
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.worker_messages import message_of, window_of
from snugfit.errors import DataError
from snugfit.kit.phases import watched


def rows(columns: int) -> list[dict[str, Any]]:
    drawn = torch.Generator().manual_seed(0)
    return [
        {"x": torch.randn(columns, generator=drawn), "labels": torch.tensor(row % 3), "name": f"row {row}"}
        for row in range(8)
    ]


@pytest.mark.parametrize(("columns", "shared"), [(4, False), (20_000, True)], ids=["small", "large"])
def test_small_windows_come_in_the_message_and_large_ones_in_shared_memory(
    columns: int, shared: bool
) -> None:
    data = rows(columns)
    here, there = (
        list(Loader(data, Order(len(data), 4), num_workers=workers).windows(0, 3)) for workers in (0, 1)
    )
    for one, other in zip(here, there, strict=True):
        assert one.ids == other.ids and one.data["name"] == other.data["name"]
        for mine, sent in zip(leaves(one.data), leaves(other.data), strict=True):
            assert torch.equal(mine, sent) and mine.dtype is sent.dtype
            assert sent.is_shared() is shared
    for sent in leaves(there[0].data):
        sent.add_(1)  # it may be written to


def test_a_message_is_read_in_the_time_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    open_phases: list[str] = []
    seen: list[tuple[str, ...]] = []

    @contextmanager
    def label(name: str) -> Iterator[None]:
        open_phases.append(name)
        yield
        open_phases.pop()

    def read(message: Any) -> Batch:
        seen.append(tuple(open_phases))
        return window_of(message)

    monkeypatch.setattr(loader, "window_of", read)
    data = rows(4)
    with watched(label):
        list(Loader(data, Order(len(data), 4), num_workers=1).windows(0, 2))
    assert seen == [("data",)] * 2


def test_a_window_is_the_same_behind_the_message() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    window = Batch.of(
        {"attention_mask": mask, "flags": mask.bool(), "turned": torch.rand(2, 3, 4).mT}, ids=[7, 9]
    )
    message = message_of(window)
    assert isinstance(message, bytes)
    again = window_of(message)
    assert (again.ids, again.lengths, again.gapless) == ((7, 9), (2, 3), True)
    for name, tensor in window.data.items():
        assert torch.equal(again.data[name], tensor) and again.data[name].dtype is tensor.dtype


class Holder:
    """Holds a tensor where nobody looks for one."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


TENSOR = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    "data",
    [
        {"x": TENSOR, "same": TENSOR[:, :1]},
        (TENSOR.bfloat16(), TENSOR),
        (TENSOR.to_sparse(), TENSOR),
        (torch.nn.Parameter(TENSOR), TENSOR.clone()),
        (TENSOR, Holder(TENSOR.clone().requires_grad_())),
    ],
    ids=["memory that two share", "a type that numpy has not", "sparse", "a subclass", "with a gradient"],
)
def test_other_windows_go_as_torch_sends_them(data: Any) -> None:
    window = Batch.of(data)
    assert message_of(window) is window and window_of(window) is window


class Unsent:
    """What no process can be told of."""

    def __reduce__(self) -> Any:
        raise TypeError("stays here")


WAY = torch.ones(3, requires_grad=True) * 2


class Buffered:
    """What the newest protocol alone can tell of, which torch does not use."""

    def __reduce_ex__(self, protocol: int) -> Any:
        return bytes, (pickle.PickleBuffer(b"held"),)


@pytest.mark.parametrize(
    ("columns", "value", "reason"),
    [
        (4, Unsent(), "stays here"),
        (40_000, Unsent(), "stays here"),
        (40_000, Buffered(), "PickleBuffer"),  # a small window goes by the newest protocol
        (4, Holder(WAY), "way of a gradient"),
        (40_000, Holder(WAY), "way of a gradient"),
    ],
)
def test_what_no_process_can_be_sent_is_an_error_and_nobody_waits_for_it(
    columns: int, value: Any, reason: str
) -> None:
    data = [{"x": torch.ones(columns), "held": value} for _ in range(2)]
    windows = Loader(
        data,
        Order(2, 2),
        collate=lambda rows: (torch.stack([row["x"] for row in rows]), value),
        num_workers=1,
    )
    with pytest.raises(
        DataError, match=rf"cannot be sent by the worker that loaded it: .*{reason}.*num_workers: 0"
    ):
        list(windows.windows(0, 1))
