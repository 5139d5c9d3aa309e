"""Windows on their way from a worker: small ones as one message, where torch hands each tensor over in a file of its own."""

from __future__ import annotations

import io
import pickle
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.batch import Batch
from snugfit.core.tree import parts

_MOST_BYTES = 1 << 17
"""Of a window that is sent in a message: of a larger one shared memory is the faster way, as nothing is copied."""

_NUMPY = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
)  # fmt: skip


def message_of(window: Batch) -> Batch | bytes:
    """Return a small window of plain tensors as bytes, any other as it is."""
    tensors = [each for each in parts([window.data, window.extras]) if _is_plain(each)]
    if len(tensors) < sum(1 for _ in parts([window.data, window.extras])):
        return window
    if sum(each.nbytes for each in tensors) > _MOST_BYTES:
        return window
    if len({each.untyped_storage().data_ptr() for each in tensors}) < len(tensors):
        return window  # those that share memory are to share it again
    message = io.BytesIO()
    try:
        _Pickler(message, pickle.HIGHEST_PROTOCOL).dump(window)
    except Exception:  # noqa: BLE001 - what is in it may say so in any way
        return window  # torch sends more, and says what of it cannot be sent
    return message.getvalue()


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


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays of numpy, which take a tenth of the time of torch's own way of bytes."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor:
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented
