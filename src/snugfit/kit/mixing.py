"""The base of techniques that mix examples: the pairs, their shares, and the loss between two labels.

A pair is two neighbours of the window, which is shuffled already: rows 0 and 1, 2 and 3, and so on; the last row of an
odd window stays itself. So the pairs depend neither on micro-batches nor on the order of techniques.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.batch import LABELS, Batch, labels_of
from snugfit.core.loss_terms import LossTerms
from snugfit.core.technique import BatchLoss, Moment
from snugfit.core.tree import leaves, map_tree, mapping_like
from snugfit.errors import DataError
from snugfit.system.device_copies import to_device

PAIR = 2
_SHARE, _LABELS = "mixing_share", "mixing_labels"


def partners(tensor: Tensor) -> Tensor:
    """Return for each row the other row of its pair; the last row of an odd number is its own partner.

    >>> partners(torch.tensor([10, 11, 20, 21, 30]))
    tensor([11, 10, 21, 20, 30])
    """
    rows = tensor.shape[0]
    return tensor.index_select(0, (torch.arange(rows, device=tensor.device) ^ 1).clamp(max=rows - 1))


def mix(tensor: Tensor, share: Tensor) -> Tensor:
    """`share` of each row and `1 - share` of its partner.

    Args:
        tensor: floating, shape (rows, ...).
        share: in [0, 1], shape (rows,), the same for both rows of a pair.

    >>> mix(torch.tensor([0.0, 10.0, 5.0]), torch.tensor([0.75, 0.75, 1.0]))
    tensor([2.5000, 7.5000, 5.0000])
    """
    share = _shaped_for(share, tensor).to(tensor.dtype)
    return share * tensor + (1 - share) * partners(tensor)


def shares_of(window: Batch, alpha: float, moment: Moment) -> Tensor:
    """Return the shares of this rank's rows of a window, drawn for all ranks alike, on the device of the window."""
    return on_device_of(window, window.own(draw_shares(window.total, alpha, host_generator(moment))))


def draw_shares(rows: int, alpha: float, source: np.random.Generator) -> Tensor:
    """Return a share for each pair from Beta(alpha, alpha), repeated for both rows: float32, shape (rows,).

    The last row of an odd number has the share 1. Drawn on the host, by numpy: small alphas do not underflow there.
    """
    drawn = torch.tensor(source.beta(alpha, alpha, rows // PAIR), dtype=torch.float32)
    return of_pairs(drawn, rows, alone=1.0)


def of_pairs(values: Tensor, rows: int, alone: float) -> Tensor:
    """Return values of pairs, shape (rows // 2, ...), as values of rows; `alone` for the last row of an odd number."""
    spread = values.repeat_interleave(PAIR, dim=0)
    return torch.cat([spread, values.new_full((rows - spread.shape[0], *values.shape[1:]), alone)])


def host_generator(moment: Moment) -> np.random.Generator:
    """Draws on the host that are a function of the moment alone, also on tensors without numbers."""
    return np.random.default_rng(moment.seed)


def on_device_of(batch: Batch, tensor: Tensor) -> Tensor:
    """`tensor`, drawn on the host, where the batch's tensors are; CUDA is not waited for."""
    return to_device(tensor, next(leaves(batch.data)).device)


def shared_terms(own: LossTerms, other: LossTerms, share: Tensor) -> LossTerms:
    """Terms between two labels: their weighted sum and their weight are linear in `share`.

    For a value with loss v and weight w on its own label, v' and w' on its partner's, the weight is
    `share * w + (1 - share) * w'` and weight times value is `share * w * v + (1 - share) * w' * v'`: a label that is
    ignored (weight 0) drops out of both, and the other label counts by its share.

    >>> own, other = LossTerms(torch.tensor([1.0, 1.0])), LossTerms(torch.tensor([3.0, 3.0]))
    >>> shared_terms(own, other, torch.tensor([0.5, 1.0])).values
    tensor([2., 1.])
    """
    if own.parts and other.parts:
        both = {
            name: (
                replace(own, values=part, parts=None),
                replace(other, values=other.parts[name], parts=None),
            )
            for name, part in own.parts.items()
        }
        parts = {name: shared_terms(*pair, share).values for name, pair in both.items()}
        return replace(shared_terms(replace(own, parts=None), replace(other, parts=None), share), parts=parts)
    share = _shaped_for(share, own.values).to(own.values.dtype)
    if own.weights is None or other.weights is None:
        return LossTerms(share * own.values + (1 - share) * other.values)
    weights = _shaped_for(share, own.weights) * own.weights + (1 - share) * other.weights
    total = share * _counted(own) + (1 - share) * _counted(other)
    return LossTerms(total / torch.where(weights > 0, weights, 1.0), weights)


def with_shares(batch: Batch, share: Tensor) -> Batch:
    """Return the batch with each row's share and its partner's labels travelling along.

    Raises:
        DataError: it has no labels.
    """
    return batch.with_extras(**{_SHARE: share, _LABELS: partners(labels_of(batch.data))})


def cut_labels(batch: Batch, columns: slice) -> Batch:
    """Return the batch with these columns of the partners' labels, where some travel along."""
    if _LABELS not in batch.extras:
        return batch
    return batch.with_extras(**{_LABELS: batch.extras[_LABELS][:, columns]})


def share_of(batch: Batch) -> Tensor | None:
    """Return each row's share, or None where nothing was mixed, as in an evaluation."""
    return batch.extras.get(_SHARE)


def between_labels(next: BatchLoss) -> BatchLoss:
    """Return the loss seam of what mixes: any loss on the own and on the partner's labels, by the row's share."""

    def loss(outputs: Any, batch: Batch) -> LossTerms:
        share = share_of(batch)
        own = next(outputs, batch)
        if share is None:
            return own
        # the padding of a micro-batch may have been cut since
        wanted = labels_of(batch.data).shape
        labels = batch.extras[_LABELS][tuple(slice(length) for length in wanted)]
        other = next(outputs, replace(batch, data=_with_labels(batch.data, labels)))
        return shared_terms(own, other, share)

    return loss


def map_inputs(function: Callable[[Tensor], Any], data: Any) -> Any:
    """Return the batch's data with `function` on every tensor but the labels.

    Raises:
        DataError: it has no labels.
    """
    labels_of(data)
    if isinstance(data, Mapping):
        inputs = map_tree(
            function, {name: value for name, value in data.items() if name != LABELS}, packed=_not_mixed
        )
        return _like(data, {name: inputs.get(name, value) for name, value in data.items()})
    return _like(data, [*(map_tree(function, value, packed=_not_mixed) for value in data[:-1]), data[-1]])


def with_entry(data: Mapping[str, Any], name: str, value: Any) -> Any:
    """Return the same mapping with another value."""
    return _like(data, {**data, name: value})


def _not_mixed(_packed: PackedSequence) -> NoReturn:
    raise DataError(
        "batch",
        "holds packed sequences, whose elements are not in rows that could be mixed",
        "Return padded tensors from collate.",
    )


def _with_labels(data: Any, labels: Tensor) -> Any:
    if isinstance(data, Mapping):
        return with_entry(data, LABELS, labels)
    return _like(data, [*data[:-1], labels])


def _like(data: Any, values: Any) -> Any:
    """Return a container of the type of `data`."""
    if isinstance(data, Mapping):
        return values if type(data) is dict else mapping_like(data, values)
    return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)


def _counted(terms: LossTerms) -> Tensor:
    assert terms.weights is not None
    return torch.where(terms.weights > 0, terms.values * terms.weights, 0.0)


def _shaped_for(share: Tensor, tensor: Tensor) -> Tensor:
    return share.reshape(-1, *[1] * (tensor.ndim - 1))
