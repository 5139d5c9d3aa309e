"""A profile's page: what is drawn is what was found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from snugfit.errors import RunFolderError
from snugfit.planner.answers.answer import Timeline
from snugfit.planner.trace.memory_breakdown import MemoryUse, Piece, Spike
from snugfit.report.memory_page import write_memory_page
from snugfit.tools.profile.limits import Advice, Culprit, Occasional
from snugfit.tools.profile.operators import Operator, Work
from snugfit.tools.profile.page import write_profile_page
from snugfit.tools.profile.result import Profile
from tests.unit.report.test_page import Page
from tests.unit.report.test_plan_page import HOSTILE, words_of

MIB = 2**20


def use(basis: str = "measured", **changes: object) -> MemoryUse:
    found = MemoryUse(
        basis,
        peak_bytes=8 * MIB,
        at_bytes=8 * MIB,
        by_kind={"weights": 2 * MIB, "activations": 6 * MIB},
        at={"segment": "backward 2", "module": "layers.1.mlp", "operator": "aten.mm.default"},
        pieces=(
            Piece("activations", "layers.1.mlp", 6 * MIB, 3, "aten.mm.default"),
            Piece("optimizer", "", 2 * MIB, 4, ""),
        ),
        spikes=(Spike(8 * MIB, "backward 2", "layers.1.mlp", "aten.mm.default", "activations"),),
        timeline=Timeline(
            ("forward 1", "backward 2", "optimizer"),
            (0.0, 0.0, 0.0),
            {"weights": (2 * MIB, 2 * MIB, 2 * MIB), "activations": (MIB, 6 * MIB, 0)},
        ),
    )
    return replace(found, **changes)


def profile(folder: Path, **changes: object) -> Profile:
    found = Profile(
        name="films",
        device={"name": "cpu", "kind": "cpu", "calibrated": False},
        updates=5,
        rows=32,
        micro_batch=8,
        seconds_per_update=0.2,
        examples_per_second=160.0,
        phases={"data": 0.08, "forward": 0.04, "backward": 0.08},
        occasional={"evaluation": Occasional(3.0, 50)},
        limits={"data": 0.08, "launch": 0.02, "memory": 0.0, "compute": 0.1},
        limit="compute",
        verdict="Computing limits: most of it.",
        culprits=(Culprit("aten::mm", 0.1, 0.5, "compute", "backward", "layers.1"),),
        advice=(Advice("plan.num_workers=2: loads beside the training.", 5 / 3, "arithmetic: 40%"),),
        operators=(Operator("aten::mm", 0.1, 12.0, "backward", "layers.1", 0.75, Work(12, 3_000_000, 10)),),
        flops_per_update=3_000_000,
        share_of_peak=0.31,
        slowdown=1.4,
        table="Name  Self CPU\naten::mm  1s",
        folder=folder,
    )
    return replace(found, **changes)


def written(found: Profile, tmp_path: Path) -> str:
    path = write_profile_page(found, tmp_path / "profile.html")
    assert list(tmp_path.iterdir()) == [path]
    text = path.read_text(encoding="utf-8")
    Page(text)
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org", "")
    return text


def test_what_was_found_is_on_the_page(tmp_path: Path) -> None:
    said = words_of(written(profile(tmp_path), tmp_path))
    for words in (
        "Computing limits: most of it.",
        "5 updates of 32 examples, in micro-batches of 8",
        "An update 0.20 s",
        "data 40%",
        "compute 50%",
        "backward 80 ms 40%",
        "aten::mm compute backward layers.1",
        "1.67× plan.num_workers=2: loads beside the training.",
        "3 MFLOP",
        "31%",
        "Evaluation 3.00 s each 50 updates",
        "layers.1 (75%)",
        "1.40 times as long",
    ):
        assert words in said, words
    assert "Memory" not in said


def test_shapes_lines_and_the_hosts_time_are_columns_where_there_are_some(tmp_path: Path) -> None:
    plain = words_of(written(profile(tmp_path), tmp_path))
    assert not any(words in plain for words in ("mostly of shapes", "mostly from", "on the host"))
    first = replace(
        profile(tmp_path).operators[0], host_seconds=0.001, shapes="8×3, 3×4", line="net.py(12): forward"
    )
    second = replace(first, name="aten::add", seconds=0.05, host_seconds=0.02)
    cuda = {"name": "t4", "kind": "cuda", "calibrated": False}
    found = profile(tmp_path, operators=(first, second), device=cuda, sorted_by="host")
    assert [each.name for each in found.listed] == ["aten::add", "aten::mm"]
    assert [each.name for each in replace(found, sorted_by="device").listed] == ["aten::mm", "aten::add"]
    said = words_of(written(found, tmp_path))
    for words in (
        "on the host",
        "mostly of shapes",
        "mostly from",
        "8×3, 3×4 net.py(12): forward",
        "20 ms 50 ms",
    ):
        assert words in said, words


def test_a_bar_is_as_long_as_its_part_of_the_update(tmp_path: Path) -> None:
    text = written(profile(tmp_path), tmp_path)
    widths = dict(re.findall(r'style="width:([0-9.]+)%" title="(\w+)"', text[text.index("class=whole") :]))
    assert {name: float(width) for width, name in widths.items()} == {
        "data": 40.0,
        "launch": 10.0,
        "compute": 50.0,
    }


def test_memory_is_drawn_measured_and_predicted(tmp_path: Path) -> None:
    text = written(profile(tmp_path, memory=(use(), use("predicted"))), tmp_path)
    said = words_of(text)
    assert text.count('<svg class="plot stack"') == 2
    assert "Memory, measured" in said and "Memory, predicted" in said
    assert "activations of layers.1.mlp 3 tensors, most of it by aten.mm.default 6.00 MiB 75%" in said
    assert "optimizer state of no single module" in said


def test_the_page_of_a_failure_names_the_largest_piece_and_what_the_allocator_said(tmp_path: Path) -> None:
    path = write_memory_page(
        "run-1", use(ran_out="CUDA out of memory"), tmp_path / "memory.html", again="the window"
    )
    text = path.read_text(encoding="utf-8")
    Page(text)
    said = words_of(text)
    assert "Most of it, 6.00 MiB of 8.00 MiB (75%), is activations of layers.1.mlp" in said
    assert "The allocator said: CUDA out of memory." in said and "What is there where memory ran out" in said


def test_the_page_of_what_did_not_fail_again_says_what_was_run_once_more(tmp_path: Path) -> None:
    scored = replace(use(), of="an evaluation")
    path = write_memory_page("run-1", scored, tmp_path / "memory.html", again="the scoring of an example")
    text = path.read_text(encoding="utf-8")
    assert "Run once more, the scoring of an example did not run out of memory." in words_of(text)
    assert "<h3>Memory over an evaluation</h3>" in text


def test_names_of_the_users_cannot_break_the_page(tmp_path: Path) -> None:
    hostile = replace(use(), pieces=(Piece(HOSTILE, HOSTILE, MIB, 1, HOSTILE),), ran_out=HOSTILE)
    found = profile(
        tmp_path,
        name=HOSTILE,
        verdict=HOSTILE,
        notes=(HOSTILE,),
        table=HOSTILE,
        culprits=(Culprit(HOSTILE, 0.1, 0.5, "data", "data", HOSTILE),),
        memory=(hostile,),
    )
    assert "<svg onload" not in written(found, tmp_path)


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_profile_page(profile(tmp_path), tmp_path / "missing" / "profile.html")
