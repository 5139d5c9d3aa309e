"""Results of tools and plans, as Python and a notebook show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.results.shown import MOST_LINES, Shown


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(32, 4, generator=generator), torch.arange(32) % 3)


TOOLS: dict[str, tuple[Callable[[], Any], str]] = {
    "certify": (lambda: sf.certify(nn.Linear(4, 3), data(), global_batch=8), "accumulation = full batch"),
    "certify_technique": (lambda: sf.certify_technique(sf.ClipNorm()), "accumulation = full batch"),
    "find_lr": (lambda: sf.find_lr(nn.Linear(4, 3), data(), optimizer=sf.SGD(), global_batch=8), "steepest"),
    "find_batch": (lambda: sf.find_batch(nn.Linear(4, 3), data(), global_batch=8), "examples/s"),
    "examine": (lambda: sf.examine(nn.Linear(4, 3), data(), global_batch=8), "Doctor: Linear"),
    "plan": (lambda: sf.plan(nn.Linear(4, 3), data()[:8], search=False), "Plan: Fits"),
}


SLOW = {"certify_technique", "plan"}
"""What takes seconds."""


@pytest.mark.parametrize(
    "tool", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in TOOLS]
)
def test_a_result_is_a_few_lines_and_its_page_in_a_notebook(tool: str) -> None:
    use, part = TOOLS[tool]
    torch.manual_seed(0)  # from some weights no rate lowers the loss of so few rows for sure
    result = use()
    text, page = repr(result), result._repr_html_()
    assert part in text
    assert len(text.splitlines()) <= MOST_LINES
    assert "srcdoc=" in page and "&lt;h1&gt;" in page


class Long(Shown):
    def summary_lines(self) -> list[str]:
        return [f"<line {number}>" for number in range(30)]


def test_what_is_too_long_is_cut_and_what_has_no_page_is_text() -> None:
    lines = repr(Long()).splitlines()
    assert (len(lines), lines[-1]) == (MOST_LINES, "  … and 19 more")
    assert (
        Long()
        ._repr_html_()
        .startswith("<pre style='white-space:break-spaces;overflow-wrap:anywhere'>&lt;line 0&gt;\n")
    )
