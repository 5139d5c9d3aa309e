"""Watch torch's distributions: probabilities that they get as logits, and what a policy's log-probabilities are multiplied by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import ScoresAsLogits, TargetGradient
from snugfit.doctor.observe.graphs.graph_nodes import (
    is_difference,
    is_of_log_probabilities,
    maker_of,
    mark_log_probabilities,
)
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

_Call = Callable[..., Any]


def watch_distributions(recorder: Recorder, patches: Patches) -> None:
    """Record probabilities that a distribution gets as its logits."""

    def drawing(original: _Call) -> _Call:
        def __init__(distribution: Any, *args: Any, **kwargs: Any) -> None:
            original(distribution, *args, **kwargs)
            logits = kwargs.get("logits", args[1] if len(args) > 1 else None)
            if not torch.compiler.is_dynamo_compiling() and isinstance(logits, Tensor) and recorder.active:
                with recorder.guard():
                    if maker_of(logits) in ("Softmax", "Sigmoid"):
                        name = type(distribution).__name__
                        recorder.add(ScoresAsLogits(where(), recorder.log.updates, name))

        return __init__

    def marking(original: _Call) -> _Call:
        def log_prob(distribution: Any, value: Any) -> Any:
            result = original(distribution, value)
            if (
                isinstance(result, Tensor)
                and recorder.detailed
                and not torch.compiler.is_dynamo_compiling()
                and recorder.active
            ):
                with recorder.guard():
                    mark_log_probabilities(result)
            return result

        return log_prob

    for kind in (torch.distributions.Categorical, torch.distributions.Bernoulli):
        patches.wrap(kind, "__init__", drawing)
    for name in ("Categorical", "Bernoulli", "Normal", "Independent", "MultivariateNormal", "Beta"):
        patches.wrap(getattr(torch.distributions, name), "log_prob", marking)


def look_at_advantage(recorder: Recorder, one: Tensor, other: Tensor) -> None:
    """Note logarithms of a policy's probabilities that are multiplied by a difference which carries the graph of a value."""
    for first, second in ((one, other), (other, one)):
        if is_of_log_probabilities(first) and is_difference(second):
            recorder.add(TargetGradient(where(), recorder.log.updates, "the product", advantage=True))
            return
