"""A plan on the terminal: what is said, where, and in how many columns."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import pytest

from snugfit.cli.plan import _with_command
from snugfit.display.plan_view import show_plan
from snugfit.display.terminal import TerminalDisplay
from snugfit.planner.answers.answer import Answer, Rejected
from snugfit.planner.plan import impossible
from tests.unit.report.fake_plan import (
    MIB,
    mlp_on_a_cpu,
    qlora_on_a_4090,
    seventy_billion_that_do_not_fit,
    with_a_frontier,
)

ANSWERS = (qlora_on_a_4090, seventy_billion_that_do_not_fit, mlp_on_a_cpu, with_a_frontier)


def shown(answer: Answer, *, explain: bool = False) -> list[str]:
    stream = io.StringIO()
    show_plan(answer, stream, explain=explain)
    return stream.getvalue().splitlines()


def section(lines: list[str], title: str) -> list[str]:
    """The lines below a title, up to the next empty one."""
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 1
    return lines[start : [*lines, ""].index("", start)]


@pytest.mark.parametrize("make", ANSWERS)
@pytest.mark.parametrize("columns", [40, 80, 100, 200])
@pytest.mark.parametrize("explain", [False, True])
def test_a_file_gets_plain_lines_that_keep_to_the_width(make, columns, explain, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    *lines, command = shown(make(), explain=explain)
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= min(columns, 100)
    assert all(line == line.rstrip() for line in lines)
    assert command == f"run       {make().command}"  # whole, however long


def test_the_command_that_runs_a_plan_has_the_consent_that_the_plan_was_asked_for_with() -> None:
    answer = _with_command(mlp_on_a_cpu(), "there/r.yaml", ["seed=1"], 1, ["--allow-code"])
    assert answer.command == "snugfit train there/r.yaml seed=1 --allow-code"


def test_the_command_names_as_many_devices_as_were_chosen_where_the_recipe_names_others() -> None:
    answer = mlp_on_a_cpu()
    assert _with_command(answer, "r.yaml", [], 4, [], of_recipe=4).command.endswith("--devices 1")

    shared = replace(answer, choice=replace(answer.choice, devices=2, strategy="ddp"))
    assert _with_command(shared, "r.yaml", [], 4, []).command.endswith("--devices 2 --strategy ddp")
    on_nodes = replace(answer, choice=replace(answer.choice, devices=8, strategy="ddp", added=()))
    assert "--nnodes 2 --nproc-per-node 4" in _with_command(on_nodes, "r.yaml", [], 4, []).command


def test_the_plan_is_told_from_the_number_to_the_command() -> None:
    lines = shown(qlora_on_a_4090())
    assert lines[0].startswith("Fits: 11.7 GiB of 24 GiB on rtx4090")
    memory = section(lines, "Memory at the peak (predicted)")
    assert [line.split()[:3] for line in memory[:5]] == [
        ["weights", "5.43", "GiB"],
        ["gradients", "159.79", "MiB"],
        ["optimizer", "320.00", "MiB"],
        ["activations", "3.83", "GiB"],
        ["temporaries", "1.22", "GiB"],
    ]
    text = "\n".join(memory)
    assert "budget        24.00 GiB       12.31 GiB free" in text
    assert "10.95 GiB in backward 2, model.layers.30.mlp.down_proj,\n          aten.mm.default" in text
    assert "9.00 GiB of host memory" in text
    time = " ".join(section(lines, "Time (predicted)"))
    for words in ("1.90 s, 3h 10m in all", "4,310 tokens/s", "197 TFLOP an update", "41% of the"):
        assert words in time
    assert "added     recompute, chunked_loss" in section(lines, "Choice")
    assert len([line for line in section(lines, "Runners-up") if "GiB" in line]) == 3
    rejected = section(lines, "Rejected")
    assert any(line.startswith("as the recipe says") and "39.10 GiB" in line for line in rejected)


def test_each_bar_begins_where_the_one_above_ends(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    memory = section(shown(seventy_billion_that_do_not_fit()), "Memory at the peak")
    bars = [(line.index("█"), line.rindex("█") + 1) for line in memory if line.count("%") and "█" in line]
    begin = bars[0][0]
    assert all(later[0] - earlier[1] in (0, 1) for earlier, later in pairwise(bars))
    # 34 of 49.86 GiB in 68 columns
    assert bars[0][1] - bars[0][0] == 46
    total = next(line for line in memory if line.startswith("in all"))
    assert total.index("█") == begin
    # the budget of 24 GiB ends at column 68 · 24 / 49.86 = 33 of the bar
    assert total.index("│") == begin + 33


def test_what_does_not_fit_gets_the_smallest_budget_at_each_fidelity() -> None:
    lines = shown(seventy_billion_that_do_not_fit())
    assert lines[0].startswith("Does not fit: the smallest plan takes 49.9 GiB")
    assert section(lines, "The smallest budget that would do") == [
        "full       612.00 GiB",
        "adapters   148.00 GiB",
        "quantised  52.00 GiB",
    ]
    assert not any(line.startswith("Runners-up") for line in lines)


def test_an_error_and_a_summary_name_the_smallest_budgets() -> None:
    answer = seventy_billion_that_do_not_fit()
    sentence = "The smallest that would do: 612 GiB at full; 148 GiB at adapters; 52 GiB at quantised."
    assert f"  why     {sentence}" in answer.summary_lines()
    assert f"{answer.why[0]} {sentence} Give it more memory" in str(impossible(answer))
    assert qlora_on_a_4090().smallest_budgets == ()


def test_every_reason_is_given_and_with_explain_each_rule_and_confidence() -> None:
    answer = qlora_on_a_4090()
    brief, full = (" ".join(" ".join(shown(answer, explain=explain)).split()) for explain in (False, True))
    for sentence in (*answer.why, *answer.rules, *answer.prediction.confidence.values()):
        assert sentence in full
    for sentence in (*answer.rules, *answer.prediction.confidence.values()):
        assert sentence not in brief
    for sentence in answer.why:
        assert sentence in brief
    assert "stream_frozen (to host)" in full and "stream_frozen (to host)" not in brief


def test_the_curve_of_memory_is_full_where_the_peak_is(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    mark, curve, names = section(shown(qlora_on_a_4090(), explain=True), "Memory over the update")
    assert curve[mark.index("▼")] == "█"
    assert len(curve) == 100
    assert names.split("  ")[0] == "forward 1"
    assert mark.index("▼") > names.index("backward 2") - 5  # the peak is in the first layers of backward 2


def test_many_rejected_rungs_are_shortened_with_the_way_to_see_them_all() -> None:
    rungs = tuple(Rejected(f"rung {number}", "too large", (number + 1) * MIB) for number in range(20))
    answer = replace(qlora_on_a_4090(), rejected=rungs)
    assert section(shown(answer), "Rejected")[-1] == "and 12 more: --explain"
    assert sum(line.startswith("rung ") and "MiB" in line for line in shown(answer, explain=True)) == 20


def test_an_encoding_without_blocks_gets_ascii_bars() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    show_plan(mlp_on_a_cpu(), stream)
    stream.flush()
    bars = [line for line in raw.getvalue().decode("ascii").splitlines() if line.startswith("optimizer")]
    assert bars[0].count("#") == 20  # 52 of 120.8 KiB in 48 columns, from the 21st to the 41st


def test_names_of_the_user_cannot_command_the_terminal() -> None:
    answer = qlora_on_a_4090()
    hostile = "a\x1b[2J\x07\r[bold red]b"
    answer = replace(
        answer,
        about={"model": hostile, "recipe": hostile},
        device={"name": hostile},
        prediction=replace(answer.prediction, peak_at=dict.fromkeys(answer.prediction.peak_at, hostile)),
        rejected=(Rejected(hostile, hostile, 1),),
        why=(hostile,),
        rules=(hostile,),
        command=hostile,
    )
    for explain in (False, True):
        text = "\n".join(shown(answer, explain=explain))
        assert not {"\x1b", "\x07", "\r"} & set(text)
        assert "[bold red]b" in text  # told, not taken for a style


def test_a_terminal_gets_colours() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    show_plan(qlora_on_a_4090(), stream)
    assert "\x1b[" in stream.getvalue()


def test_a_run_says_what_was_predicted_and_then_what_was_measured() -> None:
    stream = io.StringIO()
    with TerminalDisplay(stream=stream) as display:
        display({"event": "plan", "predicted": {"peak_bytes": 412 * MIB, "seconds_per_update": 0.21}})
        display({"event": "run", "name": "news", "id": "1"})
        display({"event": "measured", "peak_bytes": 405 * MIB, "seconds_per_update": 0.24})
    lines = stream.getvalue().splitlines()
    assert lines.index("plan      predicted 412 MiB and 0.21 s an update") > 0  # under the header
    assert lines[-1] == (
        "plan      predicted 412 MiB and 0.21 s an update; measured 405 MiB (1.7 % below) and 0.24 s (14 % above)"
    )


def test_each_level_has_its_plans_and_what_was_not_searched_is_marked_as_an_estimate(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    rows = section(shown(with_a_frontier()), "Of each level of fidelity")

    assert rows[1].startswith("full,") and rows[2].startswith("smallest") and "(does not fit)" in rows[1]
    place = next(place for place, row in enumerate(rows) if row.startswith("quantized,"))
    assert rows[place].split() == [
        "quantized,",
        "estimate,",
        "not",
        "searched",
        "≥",
        "1.20",
        "s",
        "≤",
        "3,600",
    ]
    assert rows[place + 1].split() == ["at", "best"]
    assert rows[-1].startswith("Estimates are of the arithmetic alone; snugfit plan --frontier")


def test_levels_without_tokens_say_their_examples_a_second(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    answer = with_a_frontier()
    prediction = replace(
        answer.prediction, tokens_per_second=None, seconds_per_update=2.0, examples_per_second=8.0
    )
    rows = section(
        shown(
            replace(
                answer,
                prediction=prediction,
                frontier=[replace(each, tokens_per_second=None) for each in answer.frontier],
                bounds=[replace(each, tokens_per_second=None) for each in answer.bounds],
            )
        ),
        "Of each level of fidelity",
    )

    assert rows[0].endswith("examples/s")
    assert rows[1].endswith("4.00 s           4"), "16 examples in 4 s"
    assert next(row for row in rows if row.startswith("quantized,")).endswith("≤ 13.3")
