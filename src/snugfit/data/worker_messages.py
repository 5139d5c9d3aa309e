"""Windows on their way from a worker: small ones as one message, where torch hands each tensor over in a file of its own."""

from __future__ import annotations

import io
import pickle
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.batch import Batch
from snugfit.core.tree import parts
from snugfit.errors import DataError
from snugfit.system.user_objects import describe

_MOST_BYTES = 1 << 17
"""Of a window that is sent in a message: of a larger one shared memory is the faster way, as nothing is copied."""

_NUMPY = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
)  # fmt: skip


def message_of(window: Batch) -> Batch | bytes:
    """Return a small window of plain tensors as bytes, any other as it is.

    Raises:
        DataError: it cannot be sent. Torch would say so in a thread of the worker, and who waits for the window would wait for ever.
    """
    if _is_small(window):
        message = io.BytesIO()
        # what is in it may say in any way that it cannot be pickled; torch sends more
        with suppress(Exception):
            _Pickler(message, pickle.HIGHEST_PROTOCOL).dump(window)
            return message.getvalue()
    try:
        _Attempt(_Discarded()).dump(window)
    except Exception as error:
        raise DataError(
            "data",
            f"a window cannot be sent by the worker that loaded it: {describe(error)}",
            "Have examples hold tensors, numbers and texts, or set plan.num_workers: 0, which loads in the main process.",
        ) from error
    return window


def _is_small(window: Batch) -> bool:
    """Return whether it takes little to copy the tensors of a window, each of which is a plain one in memory of its own."""
    tensors = [each for each in parts([window.data, window.extras]) if _is_plain(each)]
    if len(tensors) < sum(1 for _ in parts([window.data, window.extras])):
        return False
    if sum(each.nbytes for each in tensors) > _MOST_BYTES:
        return False
    return len({each.untyped_storage().data_ptr() for each in tensors}) == len(tensors)


def window_of(message: Batch | bytes) -> Batch:
    """Return the window that a worker sent."""
    if not isinstance(message, bytes):
        return message
    window: Batch = pickle.loads(message)  # of a process that this one started
    return window


def _is_plain(tensor: Tensor | PackedSequence) -> TypeGuard[Tensor]:
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in _NUMPY
        and tensor.numel() > 0
        and not tensor.is_neg()
    )


class _Discarded:
    """A file that keeps nothing."""

    def write(self, content: Any) -> int:
        return len(content)


class _Attempt(ForkingPickler):
    """Pickles as torch does, by the same protocol, but for the numbers of tensors: it fails where torch would."""

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            return None
        if value.requires_grad and not value.is_leaf:
            raise ValueError("a tensor is on the way of a gradient: detach it")
        return "tensor"


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays of numpy, which take a tenth of the time of torch's own way of bytes."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor:
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented
