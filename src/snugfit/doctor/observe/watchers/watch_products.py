"""Watch products of weights that a softmax gave, such as those of attention, which a mask may have changed behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.graph_nodes import masked_softmax
from snugfit.doctor.observe.term_events import MaskedWeights
from snugfit.doctor.observe.watchers.watch_log import Recorder, where

_Call = Callable[..., Any]
_SLACK = 1e-3


def watch_products(recorder: Recorder, patches: Patches) -> None:
    """Record products whose first factor was masked behind its softmax, in the first updates."""

    def multiplying(original: _Call) -> _Call:
        def multiply(one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                recorder.detailed
                and not recorder.looking
                and isinstance(one, Tensor)
                and not torch.compiler.is_dynamo_compiling()
                and recorder.here
            ):
                with recorder.guard():
                    _look_at(recorder, one)
            return original(one, other, *args, **kwargs)

        return multiply

    for name in ("__matmul__", "matmul", "bmm"):
        patches.wrap(Tensor, name, multiplying)


def _look_at(recorder: Recorder, weights: Tensor) -> None:
    """Note weights that no longer come to 1, unless the largest of each place is kept, as where a router chooses experts."""
    looked = weights.requires_grad and weights.dim() > 2 and recorder.active
    given = masked_softmax(weights.grad_fn) if looked else None
    if given is None or given.shape[-1] != weights.shape[-1] or given.numel() != weights.numel():
        return
    after, before = (each.detach().float().reshape(-1, weights.shape[-1]) for each in (weights, given))
    sums = after.sum(-1)
    partial = (sums > _SLACK) & (sums < 1 - _SLACK)
    if bool((after.argmax(1) != before.argmax(1))[partial].any()):
        recorder.add(MaskedWeights(where(), recorder.log.updates, float(sums[partial].min())))
