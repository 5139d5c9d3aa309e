"""Watch products of weights that a softmax gave, such as those of attention, which a mask may have changed behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.graph_nodes import is_masked_softmax
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
                and one.requires_grad
                and one.dim() > 2
                and not torch.compiler.is_dynamo_compiling()
                and recorder.active
            ):
                with recorder.guard():
                    _look_at(recorder, one)
            return original(one, other, *args, **kwargs)

        return multiply

    for name in ("__matmul__", "matmul", "bmm"):
        patches.wrap(Tensor, name, multiplying)


def _look_at(recorder: Recorder, weights: Tensor) -> None:
    if not is_masked_softmax(weights.grad_fn):
        return
    sums = weights.detach().float().sum(-1)
    partial = sums[(sums > _SLACK) & (sums < 1 - _SLACK)]
    if partial.numel():
        recorder.add(MaskedWeights(where(), recorder.log.updates, float(partial.min())))
