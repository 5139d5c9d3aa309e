"""The display: what a log and a terminal get to see of a run."""

from __future__ import annotations

import io
import json
import math

import pytest

from snugfit.data.report import STREAMED
from snugfit.display.event_lines import evaluation_cells, evaluation_names, header_lines
from snugfit.display.outlets import bar_line
from snugfit.display.run_state import Standing
from snugfit.display.terminal import TerminalDisplay

RUN = {
    "event": "run",
    "time": 0.0,
    "name": "news",
    "id": "20261121-1",
    "recipe": {
        "task": "text-classification",
        "model": "some/encoder",
        "train": {"global_batch": 32},
        "evaluate": {"best": "max:accuracy"},
        "optimizer": {"adamw": {"learning_rate": 5e-5}},
        "schedule": None,
        "techniques": [{"ema": {"decay": 0.99}}],
    },
    "plan": {"micro_batch": 8, "numerics": "fp32", "device": "cpu"},
    "parameters": {"total": 22_700_000, "trainable": 1_000},
    "data": {"train": 5400, "validation": 600, "skipped": {"empty text": 3}, "labels": {"a": 1, "b": 2}},
    "total_updates": 200,
    "updates_per_epoch": 100,
}


def update(window: int, loss: float = 1.0, rate: float = 100.0) -> dict:
    metrics = {"loss": loss, "learning_rate": 1e-4, "examples_per_second": rate}
    return {"event": "update", "update": window, "window": window, "epoch": window / 100, "metrics": metrics}


def evaluation(window: int, best: bool = True) -> dict:
    metrics = {"loss": 0.25, "accuracy": 0.9}
    return {
        "event": "evaluation",
        "update": window,
        "epoch": window / 100,
        "metrics": metrics,
        "train_loss": 1.0 if best else None,
        "weights": "ema",
        "best": best,
        "seconds": 1.0,
    }


def end(status: str = "finished") -> dict:
    best = {"update": 100, "metrics": {"loss": 0.25, "accuracy": 0.9}}
    return {
        "event": "end",
        "status": status,
        "stop_reason": None if status == "finished" else "received SIGTERM",
        "resumable": status != "finished",
        "updates": 200,
        "epochs": 2.0,
        "best": best,
        "seconds": 90.0,
        "examples_per_second": 71.0,
        "peak_memory_bytes": 2**30,
    }


def shown(*events: dict) -> list[str]:
    """The lines that a log gets, behind the one that says what is done first."""
    stream = io.StringIO()
    with TerminalDisplay(stream=stream) as display:
        for event in events:
            display(event)
    first, *lines = stream.getvalue().splitlines()
    assert first == "reading the data and the model …"
    return lines


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_the_header_says_what_is_trained_on_what_and_how():
    assert header_lines(RUN) == [
        "news  runs/news/20261121-1",
        "  model   some/encoder, 22.7M parameters, 1k of them trained",
        "  data    5,400 rows to train on, 600 to validate on, 3 left out (empty text)",
        "  labels  a, b",
        "  plan    4 × 8 examples an update, fp32, cpu, 200 updates (100 an epoch)",
        "  learn   adamw 5e-05, ema 0.99",
    ]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            {"train": 34, "validation": 4, "unit": "pictures"},
            "so few pictures decide which weights are kept: each is 25% of a score",
        ),
        ({"train": 180, "validation": 20}, None),
        ({"train": 34, "validation": 4, "unit": "blocks"}, None),
        ({"train": 34, "validation": 0}, None),
    ],
)
def test_the_header_says_where_few_rows_to_validate_on_decide(data: dict, line: str | None):
    lines = [each.strip() for each in header_lines({**RUN, "data": data}) if "so few" in each]
    assert lines == ([] if line is None else [line])


def test_the_header_says_where_the_weights_are_new():
    recipe = {**RUN["recipe"], "from_scratch": True}
    line = header_lines({**RUN, "recipe": recipe})[1]
    assert line == "  model   some/encoder, 22.7M parameters, 1k of them trained, new weights"


def test_the_header_says_how_many_devices_share_an_update():
    plan = {**RUN["plan"], "devices": 2, "strategy": "ddp"}
    assert (
        "  plan    2 × 2 × 8 examples an update, fp32, 2 devices by ddp (cpu), 200 updates (100 an epoch)"
        in header_lines({**RUN, "plan": plan})
    )


def test_the_header_says_how_many_parameters_are_decayed_where_some_are():
    assert header_lines({**RUN, "weight_decay": {"0": 1000}}) == header_lines(RUN)
    lines = header_lines({**RUN, "weight_decay": {"0.1": 2e6, "0.01": 22_600_000, "0": 45_000}})
    assert lines[2] == "  decay   0.1 on 2M parameters, 0.01 on 22.6M, none on 45k"


def test_a_run_from_python_without_a_recipe_has_a_header():
    bare = {"name": "run", "id": "1", "recipe": {"techniques": []}, "plan": {}, "data": {"train": 10}}
    assert header_lines(bare)[0] == "run  runs/run/1"


def test_a_terminal_that_says_it_has_no_columns_is_written_to_all_the_same(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    with TerminalDisplay(stream=terminal) as display:
        for event in (RUN, update(1), evaluation(100), end()):
            display(event)
    assert "some/encoder" in terminal.getvalue() and "finished" in terminal.getvalue()


def test_a_log_gets_the_evaluations_in_columns_and_the_end_with_what_to_do_next():
    lines = shown(RUN, update(1), evaluation(100), evaluation(200, best=False), end())
    assert lines[6:] == [
        "0%  1/200  loss 1.0000  lr 0.0001  100 examples/s",
        "   epoch    update  train loss      loss  accuracy",
        "    1.00       100      1.0000    0.2500    0.9000  best  ema",
        "    2.00       200           -    0.2500    0.9000        ema",
        "finished  200 updates, 2 epochs, 1m 30s, 71 examples/s, peak memory 1.00 GiB",
        "best      accuracy 0.9000 at update 100 (loss 0.2500)",
        "run       runs/news/20261121-1",
        "next      snugfit predict runs/news/20261121-1 NEW.csv -o predictions.csv",
    ]


def test_the_end_says_whether_another_length_would_be_better_and_nothing_where_it_cannot_tell():
    longer = {"verdict": "longer", "epochs": 12.34, "reason": "The loss still gains 0.1."}
    assert "advice    train longer, about 12.3 epochs. The loss still gains 0.1." in shown(
        RUN, {**end(), "advice": longer}
    )
    for verdict in ("stop", "unknown"):
        lines = shown(RUN, {**end(), "advice": {"verdict": verdict, "epochs": None, "reason": "x"}})
        assert not [line for line in lines if line.startswith("advice")]


def test_a_stopped_run_says_why_and_how_to_go_on():
    lines = shown(RUN, end("stopped"))
    assert "why       received SIGTERM" in lines
    assert lines[-1] == "next      snugfit resume runs/news/20261121-1"


def test_a_command_to_go_on_with_can_be_pasted_whatever_the_folder_is_called():
    lines = shown({**RUN, "run_dir": "runs/my news/20261121-1"}, end())
    assert lines[-1] == "next      snugfit predict 'runs/my news/20261121-1' NEW.csv -o predictions.csv"
    lines = shown({**RUN, "run_dir": "runs/my news/20261121-1"}, end("stopped"))
    assert lines[-1] == "next      snugfit resume 'runs/my news/20261121-1'"


@pytest.mark.parametrize(
    ("meta", "consent"),
    [
        ({"task": "text-classification", "extended_by": [{"glu": {}}]}, ""),
        ({"task": "reading_time:CARD"}, " --allow-code"),
        ({"task": "text-classification", "extended_by": [{"mine:Scaled": {}}]}, " --allow-code"),
    ],
)
def test_the_command_to_predict_with_consents_to_the_code_that_the_model_names(tmp_path, meta, consent):
    (tmp_path / "mine" / "best").mkdir(parents=True)
    (tmp_path / "mine" / "best" / "snugfit.json").write_text(json.dumps({**meta, "format": 1}))
    lines = shown({**RUN, "run_dir": "mine"}, end())
    assert lines[-1] == f"next      snugfit predict mine NEW.csv -o predictions.csv{consent}"


def test_a_smoke_run_is_followed_by_the_run_itself_and_predicts_nothing():
    lines = shown({**RUN, "smoke": "--fast-dev-run"}, end())
    assert lines[-1] == "next      the same command without --fast-dev-run"
    assert not any("predict" in line for line in lines)


def test_one_of_many_runs_leaves_what_is_next_to_their_command():
    stream = io.StringIO()
    with TerminalDisplay(stream=stream, of_many=True) as display:
        for event in (RUN, end()):
            display(event)
    lines = stream.getvalue().splitlines()
    assert "run       runs/news/20261121-1" in lines and not any(line.startswith("next") for line in lines)


def test_a_stored_model_is_what_to_predict_with_next():
    lines = shown(RUN, end(), {"event": "register", "name": "news", "version": "3", "alias": "champion"})
    assert "stored    news version 3 as champion" in lines
    assert lines[-1] == "next      snugfit predict models:/news@champion NEW.csv -o predictions.csv"


def test_what_is_found_before_the_run_is_described_is_said_under_its_header():
    early = [{"event": "warning", "message": "a new head"}, {"event": "resume", "update": 7, "window": 7}]
    lines = shown(*early, RUN)
    assert lines[0].startswith("news")
    assert lines[-2:] == ["warning: a new head", "resumed at update 7"]
    assert shown(*early)[0] == "warning: a new head"


def test_a_run_that_starts_again_is_not_said_to_be_resumed():
    again = {"event": "warning", "message": "it starts again from its beginning."}
    lines = shown({"event": "resume", "update": 0, "window": 0}, again, RUN)
    assert lines[-1] == "warning: it starts again from its beginning."
    assert not any("resumed" in line for line in lines)


@pytest.mark.parametrize(("coupled", "count"), [(False, 0), (True, 1), (None, 1)])
def test_a_check_of_rows_is_shown_where_it_has_something_to_say(coupled: bool | None, count: int):
    rows = {"event": "rows", "rows": 8, "coupled": coupled, "message": "what was found."}
    assert shown(RUN, rows).count("rows      what was found.") == count


def test_the_kernel_of_attention_is_shown_on_accelerators_in_words():
    event = {"event": "attention", "update": 1, "kernels": ["math", "flash"]}
    run = {**RUN, "plan": {**RUN["plan"], "device": "cuda"}}
    (line,) = [line for line in shown(run, event) if line.startswith("attention")]
    assert line == (
        "attention computed by a softmax of its own, which holds a number for each pair of tokens, torch's flash kernel"
    )
    assert not [
        line for line in shown({**RUN, "plan": {**RUN["plan"], "device": "cpu"}}, event) if "kernel" in line
    ]


def test_time_far_from_what_was_predicted_has_its_reason_looked_for():
    def measured(seconds: float) -> list[str]:
        plan = {"event": "plan", "predicted": {"seconds_per_update": 0.1}}
        return [
            line
            for line in shown(RUN, plan, {"event": "measured", "seconds_per_update": seconds})
            if "--calibrate" in line
        ]

    assert measured(0.21) and not measured(0.19)


def test_memory_above_what_was_predicted_is_explained_where_what_was_freed_was_kept():
    def explained(peak: int, device: str = "cpu", **machine: object) -> bool:
        run = {
            **RUN,
            "plan": {**RUN["plan"], "device": device},
            "machine": {"platform": "Linux-6.1", **machine},
        }
        plan = {"event": "plan", "predicted": {"peak_bytes": 1000}}
        return any(
            "stays with the process" in line
            for line in shown(run, plan, {"event": "measured", "peak_bytes": peak})
        )

    assert explained(1310)
    assert not explained(1005) and not explained(1310, "cuda")
    assert not explained(1310, mmap_threshold_bytes=131072) and not explained(1310, platform="macOS-15")


def test_a_run_that_computed_nothing_has_no_rate():
    assert not [line for line in shown(RUN, {**end(), "examples_per_second": 0.0}) if "examples/s" in line]


def test_many_skipped_windows_are_counted_instead_of_listed():
    skipped = [{"event": "skipped", "window": window, "reason": "nan"} for window in range(100)]
    lines = shown(RUN, *skipped)
    assert [line for line in lines if "skipped" in line][-1] == "95 more windows were skipped"
    assert sum("skipped window" in line for line in lines) == 5
    lines = shown(RUN, *skipped[:6])
    assert [line for line in lines if "skipped" in line][-1] == "1 more window was skipped"


def test_a_log_gets_no_line_for_each_update():
    lines = shown(RUN, *(update(window) for window in range(1, 101)))
    assert sum("examples/s" in line for line in lines) == 1


def test_quiet_shows_nothing(capsys):
    with TerminalDisplay(quiet=True) as display:
        for event in (RUN, update(1), evaluation(100), end()):
            display(event)
        display.note("a note")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_that_is_taken_away(terminal):
    with TerminalDisplay(stream=terminal) as display:
        display(RUN)
        display(update(100))
        assert "reading the data" in terminal.getvalue()
        assert "━" in terminal.getvalue() or "#" in terminal.getvalue()
        display(end())
    assert terminal.getvalue().rstrip().endswith("predictions.csv")
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") > 0


def test_a_terminal_is_not_drawn_on_for_every_update(terminal):
    with TerminalDisplay(stream=terminal) as display:
        display(RUN)
        display(update(1))
        before = terminal.getvalue()
        for window in range(2, 30):
            display(update(window))
        drawn = terminal.getvalue()[len(before) :].count("/200")
    assert drawn <= 2  # 28 updates take less than two tenths of a second


def test_a_terminal_that_cannot_redraw_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with TerminalDisplay(stream=terminal) as display:
        display(RUN)
        display(update(1))
    assert "\x1b" not in terminal.getvalue()
    assert "1/200" in terminal.getvalue()


def test_a_terminal_that_goes_away_does_not_end_the_run():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with TerminalDisplay(stream=Gone()) as display:
        for event in (RUN, update(1), end()):
            display(event)
    terminal = Terminal()
    with TerminalDisplay(stream=terminal) as display:
        for event in (RUN, update(1), end()):
            display(event)
        terminal.write = Gone().write  # type: ignore[method-assign]


def test_the_bar_fits_the_terminal_whatever_its_width():
    standing = Standing(run=RUN)
    for window in (1, 150):
        standing.take(update(window), now=float(window))
    for width in range(8, 160):
        line = bar_line(standing, width).plain
        assert "75%" in line, width
        assert len(line) <= max(width, len(" 75%") + 12)
        assert bar_line(standing, width, unicode=False).plain.isascii(), width


def test_the_bar_is_as_full_as_the_run_is_done():
    standing = Standing(run=RUN)
    standing.take(update(50), now=0.0)
    line = bar_line(standing, 200).plain
    assert (line.count("━"), line.count("─")) == (10, 30)


def test_the_predicted_end_follows_the_pace_so_far():
    standing = Standing(run=RUN)
    standing.take(update(1), now=100.0)  # the first update is slow; the pace counts from its end
    assert standing.seconds_left(100.0) is None
    for window in range(2, 52):
        standing.take(update(window), now=100.0 + 2 * (window - 1))
    assert standing.seconds_left(200.0) == pytest.approx(2 * 149)


def test_the_predicted_end_of_a_resumed_run_leaves_out_what_was_done_before():
    standing = Standing(run=RUN)
    for window in range(150, 161):
        standing.take(update(window), now=float(window))
    assert standing.seconds_left(160.0) == pytest.approx(40)


def test_a_loss_that_is_not_finite_does_not_stay_in_the_smoothed_one():
    standing = Standing(run=RUN)
    for window, loss in enumerate([math.nan, 2.0, math.inf, 2.0], 1):
        standing.take(update(window, loss), now=float(window))
    assert standing.loss == 2.0


def test_a_rate_that_is_not_known_yet_is_no_error():
    standing = Standing(run=RUN)
    standing.take(update(1, rate=0.0), now=0.0)
    assert "examples/s" in bar_line(standing, 120).plain


def test_a_window_that_was_refused_is_no_part_of_the_smoothed_loss():
    standing = Standing(run=RUN)
    for window, loss, applied in ((1, 1e6, False), (2, 2.0, True), (3, 1e6, False), (4, 2.0, True)):
        standing.take({**update(window, loss), "applied": applied}, now=float(window))
    assert standing.loss == 2.0


def test_sources_are_told_before_the_run_and_their_losses_have_no_columns() -> None:
    sources = [
        {"name": "chats", "rows": 900, "share": 0.6, "epochs": 1.0},
        {"name": "support", "rows": 1, "share": 0.1, "epochs": 150 / 135},
    ]
    lines = header_lines({"name": "mixed", "data": {"train": 901, "sources": sources}})
    assert "          chats: 60% of the examples, 1 epoch of 900 rows" in lines
    assert "          support: 10% of the examples, 1.11 epochs of 1 row" in lines
    metrics = {"loss": 0.5, "perplexity": 2.0, "loss/chats": 0.25, "loss/support": 0.75}
    names = evaluation_names(metrics)
    assert names == ["epoch", "update", "train loss", "loss", "perplexity"]
    values, _ = evaluation_cells(
        {"metrics": metrics, "epoch": 1, "update": 3, "best": True, "train_loss": 0.5}
    )
    assert len(values) == len(names)
    assert values[2] == "0.5000"


def test_a_stream_has_no_epochs() -> None:
    run = {**RUN, "data": {**RUN["data"], "unit": STREAMED}}
    lines = shown(run, *map(update, range(1, 101)), evaluation(100), end())
    assert any("200 updates" in line for line in lines) and not any("epoch" in line for line in lines)
    with_epochs = shown(RUN, *map(update, range(1, 101)), evaluation(100), end())
    assert sum("epoch" in line for line in with_epochs) == 3
    cells = next(line.split() for line in lines if line.endswith("best  ema"))
    assert cells[:2] == ["100", "1.0000"]
