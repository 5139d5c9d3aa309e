"""The spread of weights, beside NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from snugfit.run.observers import weight_histograms as module
from snugfit.run.observers.weight_histograms import BINS, weight_histograms


def test_counts_are_those_of_numpy_in_pieces_and_leave_out_what_is_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 100)
    monkeypatch.delattr(torch, "histc")  # which plan.deterministic refuses on CUDA
    model = nn.Module()
    values = torch.randint(-64, 65, (37, 29)).float() / 64  # on edges, which no rounding moves
    values[0, 0], values[0, 1] = -1.0, 1.0
    model.weight = nn.Parameter(values.clone())
    model.coarse = nn.Parameter(values.bfloat16())
    model.odd = nn.Parameter(torch.tensor([1.0, float("nan"), float("inf"), 3.0]))
    model.none = nn.Parameter(torch.tensor([float("nan")]))
    model.frozen = nn.Parameter(values.clone(), requires_grad=False)
    model.bias = nn.Parameter(torch.zeros(5))
    kind, fields = weight_histograms(model, 3, Path())
    told = fields["histograms"]
    assert (kind, {*told}) == ("histograms", {"weight", "coarse", "odd", "none", "bias"})
    counts, edges = np.histogram(values.numpy(), BINS)
    for name in ("weight", "coarse"):
        assert (told[name]["low"], told[name]["high"]) == (edges[0], edges[-1])
        assert told[name]["counts"] == counts.tolist()
    assert (told["odd"]["low"], told["odd"]["high"], sum(told["odd"]["counts"])) == (1.0, 3.0, 2)
    assert told["odd"]["not_finite"] == 2 and told["none"] == {"counts": [], "not_finite": 1}
    assert sum(told["bias"]["counts"]) == 5 and told["bias"]["low"] < 0 < told["bias"]["high"]
