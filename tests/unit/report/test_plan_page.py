"""A plan's page: what is drawn is what is said."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from snugfit.errors import RunFolderError
from snugfit.planner.answers.answer import Answer, Rejected, Timeline
from snugfit.report.page import write_report
from snugfit.report.plan_page import write_plan_page
from snugfit.tracking.spool import Spool
from tests.unit.report.fake_plan import (
    GIB,
    MIB,
    mlp_on_a_cpu,
    prediction,
    qlora_on_a_4090,
    seventy_billion_that_do_not_fit,
    with_a_frontier,
)
from tests.unit.report.fake_run import write_run
from tests.unit.report.test_page import Page

ANSWERS = (qlora_on_a_4090, seventy_billion_that_do_not_fit, mlp_on_a_cpu, with_a_frontier)
HOSTILE = "</title><script>alert(1)</script>\"'&\x1b\x00<svg onload=x>"


def write(answer: Answer, tmp_path: Path) -> str:
    path = write_plan_page(answer, tmp_path / "plan.html")
    assert list(tmp_path.iterdir()) == [path]
    return path.read_text(encoding="utf-8")


def words_of(page: str) -> str:
    """What a reader sees, without tags and with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))).split())


def drawing(page: str) -> ElementTree.Element:
    """The chart, read as strict XML."""
    start = page.index('<svg class="plot stack"')
    return ElementTree.fromstring(page[start : page.index('<div class="note">', start)])


def height(y: str, top: float) -> float:
    """What a place in percent of the plot stands for, if 0% is `top`."""
    return (1 - float(y.removesuffix("%")) / 100) * top


def axis_top(chart: ElementTree.Element) -> float:
    """The value at the upper end of the axis, from the places and labels of its ticks."""
    ticks = [
        (float(text.get("y").rstrip("%")), float(text.text)) for text in chart.findall("text[@class='y']")
    ]
    place, value = ticks[-1]
    return value / (1 - place / 100)


def highest_edge(chart: ElementTree.Element) -> float:
    """The highest place of all areas, in parts of the plot from its top."""
    edges = [float(y) for path in chart.iter("path") for y in re.findall(r"V([\d.]+)", path.get("d"))]
    return min(edges) / 1000


def test_a_long_path_is_no_title_and_is_said_beside_the_choice(tmp_path) -> None:
    path = "/home/me/.cache/models/minilm/model"
    answer = mlp_on_a_cpu()
    page = write(replace(answer, about={**answer.about, "model": path}), tmp_path)
    assert "<h1>minilm/model</h1>" in page and "<title>minilm/model ·" in page
    assert f"model {path} micro-batch" in words_of(page)
    named = write(replace(answer, about={**answer.about, "model": "nobody/minilm"}), tmp_path)
    assert "<h1>nobody/minilm</h1>" in named and named.count("nobody/minilm") == 2


@pytest.mark.parametrize("make", ANSWERS)
def test_the_page_is_balanced_and_needs_nothing_else(make, tmp_path) -> None:
    text = write(make(), tmp_path)
    page = Page(text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert "prefers-color-scheme:dark" in text
    assert len(text) < 200_000


@pytest.mark.parametrize(
    ("make", "unit"), [(qlora_on_a_4090, GIB), (seventy_billion_that_do_not_fit, GIB), (mlp_on_a_cpu, 1024)]
)
def test_the_peak_is_drawn_as_high_as_is_said(make, unit, tmp_path) -> None:
    answer = make()
    chart = drawing(write(answer, tmp_path))
    top, peak = axis_top(chart), answer.prediction.peak_bytes / unit
    assert (1 - highest_edge(chart)) * top == pytest.approx(peak, rel=2e-3)
    assert height(chart.find("circle").get("cy"), top) == pytest.approx(peak, rel=2e-3)
    assert (
        chart.find("text[@class='said peak end']") is not None
        or chart.find("text[@class='said peak']") is not None
    )
    reserved = chart.find("line[@class='reserved']")
    assert height(reserved.get("y1"), top) == pytest.approx(answer.prediction.reserved_bytes / unit, rel=2e-3)


def test_each_kind_is_as_thick_at_the_peak_as_its_bytes(tmp_path) -> None:
    answer = qlora_on_a_4090()
    chart = drawing(write(answer, tmp_path))
    top = axis_top(chart)
    column = round(float(chart.find("circle").get("cx").rstrip("%")) / 100 * 600 - 0.5)
    edges = {
        path.find("title").text: level_at(path.get("d"), (column + 0.5) / 600 * 1000)
        for path in chart.iter("path")
    }
    order = ["weights", "optimizer", "inputs", "gradients", "activations", "temporaries", "workspace"]
    assert list(edges) == order[::-1]  # painted from the highest to the lowest
    below = 0.0
    for kind in order:
        edge = (1 - edges[kind] / 1000) * top
        assert edge - below == pytest.approx(answer.prediction.peak_by_kind[kind] / GIB, abs=2e-3 * top)
        below = edge


def level_at(outline: str, x: float) -> float:
    """The height of a staircase at `x`."""
    level = 1000.0
    for command, value in re.findall(r"([HV])([\d.]+)", outline):
        if command == "H" and float(value) > x:
            return level
        if command == "V":
            level = float(value)
    raise AssertionError("the outline ends before x")


def test_the_peak_of_a_hundred_thousand_points_is_drawn(tmp_path) -> None:
    levels = [GIB + (number * 7919) % MIB for number in range(100_000)]
    levels[77_777] = 3 * GIB
    line = Timeline(
        ("backward",) * 100_000, tuple(number / 1e5 for number in range(100_000)), {"weights": tuple(levels)}
    )
    found = prediction(
        line, {"segment": "backward"}, reserved=0, host=GIB, flops=1, share=0.1, tokens=None, total=None
    )
    text = write(replace(qlora_on_a_4090(), prediction=found, budget_bytes=4 * GIB), tmp_path)
    chart = drawing(text)
    assert (1 - highest_edge(chart)) * axis_top(chart) == pytest.approx(3.0, rel=2e-3)
    assert float(chart.find("circle").get("cx").rstrip("%")) == pytest.approx(77.78, abs=0.2)
    assert len(text) < 60_000


def test_the_budget_is_a_line_where_it_is_in_view_and_words_where_it_is_not(tmp_path) -> None:
    text = write(seventy_billion_that_do_not_fit(), tmp_path)
    chart = drawing(text)
    line = chart.find("line[@class='budget']")
    assert height(line.get("y1"), axis_top(chart)) == pytest.approx(24.0, rel=2e-3)
    text = write(mlp_on_a_cpu(), tmp_path)
    assert drawing(text).find("line[@class='budget']") is None
    assert "The budget, 4 GiB, is 34,721 times as high as this plot." in text


def test_segments_are_bands_that_cover_the_whole_axis(tmp_path) -> None:
    chart = drawing(write(qlora_on_a_4090(), tmp_path))
    strip = list(chart.iter("rect"))
    names = [rect.find("title").text for rect in strip]
    assert names == ["forward 1", "loss 1", "backward 1", "forward 2", "loss 2", "backward 2", "optimizer"]
    assert sum(float(rect.get("width").rstrip("%")) for rect in strip) == pytest.approx(100, abs=0.1)
    shades = {name: rect.get("class") for name, rect in zip(names, strip, strict=True)}
    assert shades["forward 1"] == shades["forward 2"] != shades["backward 1"] == shades["backward 2"]


def test_a_peak_outside_of_the_update_is_told_beside_the_highest_point_drawn(tmp_path) -> None:
    answer = qlora_on_a_4090()
    found = replace(
        answer.prediction,
        peak_bytes=14 * GIB,
        reserved_bytes=15 * GIB,
        peak_at={"segment": "evaluation", "module": "head"},
    )
    text = write(replace(answer, prediction=found), tmp_path)
    assert (
        "Highest at 10.95 GiB, in backward 2; the plan&#x27;s peak, 14.00 GiB, is outside of the update: evaluation, head."
        in text
    )
    assert drawing(text).find("circle/title").text.startswith("backward 2; the plan's peak")


def test_every_part_of_the_answer_is_on_the_page(tmp_path) -> None:
    answer = qlora_on_a_4090()
    plain = words_of(write(answer, tmp_path))
    for words in (
        "Fits: 11.7 GiB of 24 GiB on rtx4090, 1.90 s an update, 3h 10m in all (predicted).",
        "weights 5.43 GiB 46%",
        "inputs 96.00 KiB <1%",
        "in all 11.69 GiB",
        "operator aten.mm.default",
        "added by the planner recompute, chunked_loss",
        "recompute every second block micro-batch 2, bf16, qlora (rank 16, alpha 32), recompute 17.00 GiB 19.00 GiB 2.00 s",
        "as the recipe says needs 15.1 GiB more than there is 39.10 GiB 1.71 s",
        "time uncalibrated, from the maker's sheet",
        answer.command,
        *answer.why,
        *answer.rules,
    ):
        assert words in plain
    assert "The smallest budget" not in plain
    assert "full 612.00 GiB adapters 148.00 GiB quantised 52.00 GiB" in words_of(
        write(seventy_billion_that_do_not_fit(), tmp_path)
    )


def test_bars_of_rejected_rungs_stand_against_the_budget(tmp_path) -> None:
    rungs = (
        Rejected("large", "too large", 48 * GIB),
        Rejected("slow", "slower", 12 * GIB, 9.0),
        Rejected("no", "why", None),
    )
    text = write(replace(qlora_on_a_4090(), rejected=rungs), tmp_path)
    rows = re.findall(r"<tr><th scope=row>(\w+)<small>.*?</tr>", text)
    assert rows[-3:] == ["large", "slow", "no"]
    bars = {name: re.search(rf"<th scope=row>{name}<small>.*?</tr>", text)[0] for name in rows[-3:]}
    assert '<span class=over style="width:100.0%">' in bars["large"]
    assert '<span class=fill8 style="width:25.0%">' in bars["slow"]
    assert "<span" not in bars["no"]
    assert all('<i style="left:50.0%">' in bar for bar in bars.values())


def test_hostile_names_are_text_everywhere(tmp_path) -> None:
    answer = qlora_on_a_4090()
    line = answer.prediction.timeline
    assert line is not None
    levels = {HOSTILE: line.bytes_by_kind["weights"], **dict(list(line.bytes_by_kind.items())[1:])}
    found = replace(
        answer.prediction,
        peak_at=dict.fromkeys(("segment", "module", "operator"), HOSTILE),
        peak_by_kind={HOSTILE: answer.prediction.peak_bytes},
        confidence={HOSTILE: HOSTILE},
        timeline=Timeline(tuple(HOSTILE for _ in line.segments), line.seconds, levels),
    )
    choice = replace(
        answer.choice, techniques=({HOSTILE: {HOSTILE: HOSTILE}},), added=(HOSTILE,), numerics=HOSTILE
    )
    answer = replace(
        answer,
        prediction=found,
        choice=choice,
        alternatives=tuple(replace(one, rung=HOSTILE, choice=choice) for one in answer.alternatives),
        rejected=(Rejected(HOSTILE, HOSTILE, GIB),),
        why=(HOSTILE,),
        rules=(HOSTILE,),
        would_fit={HOSTILE: GIB},
        command=HOSTILE,
        device={"name": HOSTILE},
        about={"model": HOSTILE, "recipe": HOSTILE, HOSTILE: HOSTILE},
    )
    text = write(answer, tmp_path)
    assert "script" not in Page(text).tags
    assert "onload=x>" not in text
    drawing(text)


def test_a_plan_without_a_timeline_has_every_other_section(tmp_path) -> None:
    answer = qlora_on_a_4090()
    text = write(replace(answer, prediction=replace(answer.prediction, timeline=None)), tmp_path)
    assert "Over the step" not in text
    assert "At the peak (predicted)" in text


def test_a_page_that_cannot_be_put_in_place_is_a_user_error(tmp_path) -> None:
    with pytest.raises(RunFolderError, match="plan.html: the page cannot be written: No such file"):
        write_plan_page(mlp_on_a_cpu(), tmp_path / "nowhere" / "plan.html")


def test_a_run_that_was_planned_and_measured_has_both_in_its_report(tmp_path) -> None:
    run_dir = write_run(tmp_path / "runs" / "agnews" / "1", updates=5, evaluations=0)
    assert "Predicted and measured" not in write_report(run_dir).read_text(encoding="utf-8")
    with Spool(run_dir / "events.jsonl") as spool:
        spool.append("plan", predicted={"peak_bytes": 412 * MIB, "seconds_per_update": 0.21})
    assert "Predicted and measured" not in write_report(run_dir).read_text(encoding="utf-8")
    with Spool(run_dir / "events.jsonl") as spool:
        spool.append("measured", peak_bytes=405 * MIB, seconds_per_update=0.24)
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert (
        "<p>Predicted 412 MiB and 0.21 s an update; measured 405 MiB (1.7 % below) and 0.24 s (14 % above).</p>"
        in page
    )
    assert "stays with the process" not in page
    with Spool(run_dir / "events.jsonl") as spool:
        spool.append("run", plan={"device": "cpu"}, machine={"platform": "Linux-6.1"})
        spool.append("measured", peak_bytes=540 * MIB)
    assert "What was freed stays with the process" in write_report(run_dir).read_text(encoding="utf-8")


def test_the_levels_are_drawn_with_their_colours_the_choice_and_the_budget(tmp_path: Path) -> None:
    page = write(with_a_frontier(), tmp_path)
    start = page.index("<figure class=wide><figcaption><h3>Time of an update")
    figure = page[start : page.index("</figure>", start)]
    chart = ElementTree.fromstring(
        re.sub(
            r"=([a-z]+)(?=[ >])", r'="\1"', figure[figure.index("<svg class=plot") : figure.rindex("<div")]
        )
    )
    dots = {each[0].text: each for each in chart.iter("circle") if len(each)}

    assert re.findall(r"tone\d\"></i>(\w+)<", figure) == ["full", "mixed", "adapters"]
    # 31 GiB and 8% are the whole width, 4 s and what an axis has of air the height
    smallest = dots["mixed + smallest (mixed): 3.60 s in 15 GiB"]
    assert float(smallest.get("cx").rstrip("%")) == pytest.approx(100 * 15 / (1.08 * 31), abs=0.1)
    assert "tone2" in smallest.get("class")
    (ring,) = (each for each in chart.iter("circle") if "ring" in each.get("class"))
    dot = next(each for title, each in dots.items() if title.startswith("recompute + chunked_loss"))
    assert (ring.get("cx"), ring.get("cy")) == (dot.get("cx"), dot.get("cy"))
    (budget,) = (each for each in chart.iter("line") if "mark" in each.get("class"))
    assert float(budget.get("x1").rstrip("%")) == pytest.approx(100 * 24 / (1.08 * 31), abs=0.1)
    assert "quantized, at best estimate, not searched ≥ 1.20 s ≤ 3,600" in words_of(page)


def test_a_plan_without_others_has_no_picture_of_them(tmp_path: Path) -> None:
    answer = replace(qlora_on_a_4090(), alternatives=())
    assert "Time of an update" not in write(answer, tmp_path)
