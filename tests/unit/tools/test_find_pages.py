"""The pages of a range test and of micro-batches: what is drawn is what was found."""

from __future__ import annotations

import html
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from snugfit.errors import MissingExtra, RunFolderError
from snugfit.report.chart_pictures import require_matplotlib
from snugfit.report.svg import LogFrame
from snugfit.tools.find_batch.page import write_batch_page
from snugfit.tools.find_batch.result import FITS, PREDICTED, FoundBatch, Size
from snugfit.tools.find_lr.lr_rules import RateReading, suggest
from snugfit.tools.find_lr.measure import RangeTest
from snugfit.tools.find_lr.page import render_lr_page, write_lr_page, write_lr_picture
from tests.unit.report.test_page import Page

HOSTILE = "</title><script>alert(1)</script>\"'&"


def falling() -> RangeTest:
    """From 1e-6 to 1 the loss falls from 2 to 1, at 1e-2, and then rises."""
    rates = [10 ** (-6 + place / 5) for place in range(31)]
    losses = (
        [2.0] * 10
        + [2.0 - place / 10 for place in range(1, 11)]
        + [1.0 + place**2 / 10 for place in range(10)]
    )
    curve = [RateReading(rate, loss, loss) for rate, loss in zip(rates, losses, strict=False)]
    curve.append(RateReading(rates[-1], 900.0, 20.0))
    return RangeTest(tuple(curve), suggest(curve[:-1])[0], "the loss diverged", "2e-3: because")


def words_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_a_page_without_a_recommendation_says_why_and_marks_no_rule() -> None:
    doubted = replace(falling(), doubts=("the rules are 50 times apart. Try a short run with each",))
    sure, unsure = (render_lr_page("x", found, {}, {}) for found in (falling(), doubted))
    assert "(recommended)" in words_of(sure) and "(recommended)" not in words_of(unsure)
    assert "No rate is recommended, and none is written: The rules are 50 times apart." in words_of(unsure)
    assert words_of(unsure).count("steepest") == words_of(sure).count("steepest")
    assert 'class="ring' in sure and 'class="ring' not in unsure
    assert 'status failed">No rate' in unsure


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors_and_labels_at_powers() -> None:
    frame = LogFrame(start=1e-6, end=1.0)
    assert [frame.x(value) for value in (1e-6, 1e-3, 1.0)] == pytest.approx([0.0, 0.5, 1.0])
    assert frame.ticks()[0] == pytest.approx([10.0**power for power in range(-6, 1)])
    assert frame.ticks()[1][:2] == ["1e−6", "1e−5"] and frame.ticks()[1][-1] == "1"
    sizes = LogFrame(start=3, end=48, base=2)
    assert sizes.ticks() == ([4.0, 8.0, 16.0, 32.0], ["4", "8", "16", "32"])


def test_the_rules_are_drawn_where_they_are_and_told_beside(tmp_path: Path) -> None:
    path = write_lr_page("my <model>", falling(), {}, {"learning_rate": 1.5e-3}, tmp_path)
    text = path.read_text(encoding="utf-8")
    found, shown = falling().suggestions, words_of(text)
    assert "my &lt;model&gt;" in text and list(tmp_path.iterdir()) == [path]
    Page(text)
    frame = LogFrame(start=1e-6, end=1.0)
    for rule, each in found.items():
        assert f'cx="{frame.x(each.learning_rate):.2%}"' in text
        assert f"{rule}: {each.reason}" in shown or each.reason in shown
    assert (
        "minimum (recommended)" in shown
        and "values above the axis, the furthest 900 at learning rate 1" in shown
    )
    assert "optimizer’s learning_rate 0.0015" in shown and "Each part alone" not in shown


def test_parts_are_told_with_their_share_of_the_highest_rate() -> None:
    low = RangeTest(
        falling().curve,
        {"minimum": replace(falling().suggestions["minimum"], learning_rate=falling().learning_rate / 4)},  # type: ignore[operator]
        "the end of the range",
        "low",
    )
    shown = words_of(render_lr_page("m", falling(), {"head": falling(), "body": low}, {}))
    assert re.search(r"1 head 2e-3: because", shown) and re.search(r"0\.25 body low", shown)


@pytest.mark.parametrize("count", [0, 1])
def test_a_test_that_ended_at_once_still_has_a_page(count: int) -> None:
    curve = (RateReading(1e-3, math.nan, math.nan),) * count
    shown = words_of(render_lr_page("m", RangeTest(curve, {}, "no <data>", "there are 0 readings"), {}, {}))
    assert "No rate" in shown and "there are 0 readings" in shown and "no <data>" in shown


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    for path in (
        write_lr_page(HOSTILE, falling(), {HOSTILE: falling()}, {}, tmp_path),
        write_batch_page(HOSTILE, sizes(), tmp_path),
    ):
        text = path.read_text(encoding="utf-8")
        assert "<script" not in text and "alert(1)" in text


@pytest.mark.slow
def test_a_picture_is_drawn_in_the_format_of_its_name(tmp_path: Path) -> None:
    path = write_lr_picture("m", falling(), tmp_path / "lr.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RunFolderError, match=r"lr\.nothing: the picture cannot be written"):
        write_lr_picture("m", falling(), tmp_path / "lr.nothing")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_lr_picture("m", falling(), tmp_path / "none" / "lr.png")


def test_without_matplotlib_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("snugfit.report.chart_pictures.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'snugfit\[plot\]'"):
        require_matplotlib()


def sizes() -> FoundBatch:
    rows = (
        Size(1, FITS, 2**20, 10.0, (0.8, 0.8)),
        Size(2, FITS, 2 * 2**20, 30.0, (0.26, 0.27)),
        Size(4, FITS, 3 * 2**20, 25.0, (0.32, 0.32)),
        Size(8, PREDICTED, 5 * 2**20),
    )
    return FoundBatch(rows, 4, 2, 8, 2**19, 4 * 2**20, "cpu", "micro-batches of 4", True)


def test_sizes_are_drawn_over_the_size_with_the_budget(tmp_path: Path) -> None:
    text = write_batch_page("m", sizes(), tmp_path).read_text(encoding="utf-8")
    Page(text)
    shown = words_of(text)
    for row in (
        "1 10 1.00 MiB fits",
        "2 30 2.00 MiB fits",
        "8 5.00 MiB does not fit, as predicted from smaller ones",
    ):
        assert row in shown
    assert (
        "Largest that fits 4 25 examples/s, 3.00 MiB" in shown
        and "Fastest 2 30 examples/s, 2.00 MiB" in shown
    )
    assert "Budget 4.00 MiB" in shown and text.count("<figure") == 2
    assert len(re.findall(r'class="dot', text)) == 3 + 4


def test_a_single_size_has_a_table_and_no_drawing(tmp_path: Path) -> None:
    one = replace(sizes(), rows=sizes().rows[:1], largest=1, fastest=1)
    text = write_batch_page("m", one, tmp_path).read_text(encoding="utf-8")
    assert "<figure" not in text and "1 10 1.00 MiB fits" in words_of(text)
