from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from snugfit.data.report import STREAMED
from snugfit.errors import RunFolderError
from snugfit.report.advice import advise
from snugfit.report.page import replace_page, write_report
from snugfit.report.story import read_story
from tests.unit.report.fake_run import write_run

VOID = {"meta", "br", "wbr", "hr", "img", "input", "link"}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "agnews" / "20260528-141320-k3f9"


class Page(HTMLParser):
    """A page's elements, texts and attributes; fails on an element that is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.titles: list[str] = []
        self.curves: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "path":
            self.curves.append(dict(attrs)["d"] or "")


def make_page(run_dir: Path) -> Page:
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    return Page(path.read_text(encoding="utf-8"))


CASES: dict[str, Callable[[Path], Path]] = {
    "finished": write_run,
    "resumed": lambda path: write_run(path, resume_at=300),
    "one update": lambda path: write_run(path, updates=1, evaluations=1, skipped=0),
    "no evaluation": lambda path: write_run(path, updates=30, evaluations=0),
    "stopped": lambda path: write_run(path, updates=90, total_updates=200, status="stopped"),
    "failed": lambda path: write_run(path, updates=90, total_updates=200, status="failed"),
    "in progress": lambda path: write_run(path, updates=90, total_updates=200, status=None),
    "all nan": lambda path: write_run(
        path, updates=40, evaluations=0, metrics=lambda update: {"loss": math.nan}
    ),
    "huge": lambda path: write_run(
        path, updates=40, metrics=lambda update: {"loss": 1.7e308, "other": -1e308}
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_run_gives_a_balanced_page_that_needs_nothing_else(case: str, run_dir: Path) -> None:
    page = make_page(CASES[case](run_dir))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    for _, name, value in page.attributes:
        assert name not in ("src", "href", "xlink:href") or value.startswith("#")
        assert not name.startswith("on")
    style = page.text[page.text.index("<style>") : page.text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme:dark" in style
    drawn = " ".join(
        value for _, name, value in page.attributes if name in ("d", "x", "cx", "cy", "x1", "y1")
    )
    assert "nan" not in drawn.lower()
    assert "inf" not in drawn.lower()
    assert page.tags.count("figure") == sum(
        v == "plot" for t, n, v in page.attributes if (t, n) == ("svg", "class")
    )


def test_what_a_run_measured_has_a_curve_each_and_its_figures(run_dir: Path) -> None:
    page = make_page(write_run(run_dir))
    drawn = re.findall(r"<figcaption><h3>(.*?)</h3>", page.text)
    assert {"Loss", "Accuracy", "Learning rate", "Gradient norm", "Throughput", "Memory"} <= set(drawn)
    assert len(page.curves) >= len(drawn)
    for figure in ("Throughput", "examples/s", "Peak memory", "Duration"):
        assert figure in page.text


def test_a_long_run_stays_under_one_megabyte_and_keeps_its_spike(run_dir: Path) -> None:
    write_run(
        run_dir,
        updates=8000,
        evaluations=80,
        skipped=200,
        metrics=lambda u: {"loss": 3.5} if u == 4321 else {},
    )
    page = make_page(run_dir)
    assert len(page.text.encode()) < 1_000_000
    assert max(curve.count("L") for curve in page.curves) < 5 * 480
    assert "highest 3.5" in page.text
    raw_loss = [tuple(map(int, place.split())) for place in re.findall(r"\d+ -?\d+", page.curves[0])]
    highest = min(raw_loss, key=lambda place: place[1])
    assert highest[0] == pytest.approx(1000 * 4321 / 8000, abs=1)


def test_counts_of_the_data_are_said_in_words(run_dir: Path) -> None:
    write_run(run_dir)
    text = write_report(run_dir).read_text()
    assert not re.search(
        r"tokens_|max_length</t|bad_rows</t", text.partition("Data</h2>")[2].partition("</section>")[0]
    )
    assert "tokens of the longest" in text and "texts cut" not in text  # none was
    assert "rows that were compared" in text and "compared.rows" not in text


def test_the_model_of_a_long_path_is_named_by_its_end_above_the_title(run_dir: Path) -> None:
    events = write_run(run_dir) / "events.jsonl"
    named = "sentence-transformers/all-MiniLM-L6-v2"
    assert f"<p class=about>text-classification · {named}</p>" in make_page(run_dir).text
    events.write_text(events.read_text().replace(named, "/home/me/.cache/models/minilm/model"))
    assert "<p class=about>text-classification · minilm/model</p>" in make_page(run_dir).text


def test_a_stream_has_no_epochs(run_dir: Path) -> None:
    events = write_run(run_dir) / "events.jsonl"
    assert "Epochs" in make_page(run_dir).text
    events.write_text(events.read_text().replace('"train":5400', f'"unit":"{STREAMED}","train":5400'))
    text = make_page(run_dir).text
    said = text.replace("All 3 epochs are done.", "").partition("<h2>Recipe")[0]  # by the fake run itself
    assert re.search("epoch", said, re.IGNORECASE) is None
    assert "of 507 planned" in text and "<h2>Curves" in text


def test_text_from_a_run_is_escaped(run_dir: Path) -> None:
    hostile = '<script>alert("1")</script>'
    write_run(run_dir, updates=5, name=hostile, metrics=lambda update: {f"{hostile}/{hostile}": 1.0})
    (run_dir / "recipe.yaml").write_text(f"name: '{hostile}'\n", encoding="utf-8")
    (run_dir / "plan.json").write_text(json.dumps({hostile: {hostile: [hostile]}}), encoding="utf-8")
    with (run_dir / "events.jsonl").open("a", encoding="utf-8") as spool:
        for event in (
            {"event": "warning", "message": hostile},
            {"event": "skipped", "window": 3, "reason": hostile},
            {"event": "checkpoint", "update": 5, "path": hostile, "seconds": 1.0},
            {"event": "evaluation", "update": 5, "metrics": {hostile: 1.0}, "weights": hostile, "best": True},
            {"event": "end", "status": f'failed" {hostile}', "stop_reason": hostile},
        ):
            spool.write(json.dumps(event | {"time": 1_780_000_100.0}) + "\n")
    page = make_page(run_dir)
    assert "script" not in page.tags
    assert page.text.count("&lt;script&gt;") >= 10


def test_a_password_in_an_address_is_not_shown(run_dir: Path) -> None:
    page = make_page(write_run(run_dir, updates=5))
    text = page.text.replace("<wbr>", "")
    assert "mlflow.example.org/agnews/4" in text
    assert "secret" not in text
    assert "https://ana:***@mlflow.example.org" in text


def test_a_value_that_is_not_finite_is_a_gap_in_the_curve(run_dir: Path) -> None:
    write_run(
        run_dir,
        updates=10,
        evaluations=0,
        skipped=0,
        metrics=lambda u: {"loss": math.nan if u in (4, 5) else 1.0},
    )
    assert '"NaN"' in (run_dir / "events.jsonl").read_text(encoding="utf-8")
    page = make_page(run_dir)
    assert page.curves[0] == "M100 500L200 500L300 500M600 500L700 500L800 500L900 500L1000 500"
    assert "Training: 2 values not finite, left out." in page.text


def test_a_run_of_one_update_shows_its_points_and_its_evaluation_in_a_table(run_dir: Path) -> None:
    page = make_page(write_run(run_dir, updates=1, evaluations=1, skipped=0))
    assert page.curves[0].endswith("h0")
    assert any(title.startswith("training 0.") for title in page.titles)
    assert "<h2>The evaluation</h2>" in page.text and "<td>best so far</td>" in page.text
    assert "<h3>Accuracy</h3>" not in page.text


def test_what_a_resume_repeats_is_shown_once(run_dir: Path) -> None:
    write_run(run_dir, updates=100, resume_at=50, evaluations=10, skipped=0)
    story = read_story(run_dir)
    assert [event["update"] for event in story.updates] == list(range(1, 101))
    assert [event["update"] for event in story.evaluations] == list(range(10, 101, 10))
    page = make_page(run_dir)
    assert "Resumed from update 50." in page.text
    assert page.text.count('class="mark resume"') == 1
    # the hour between the kill and the resume is no training time
    assert story.seconds < 400


def test_an_end_before_a_resume_is_not_the_end(run_dir: Path) -> None:
    write_run(run_dir, updates=90, total_updates=200, status="stopped")
    with (run_dir / "events.jsonl").open("a", encoding="utf-8") as spool:
        spool.write(
            json.dumps({"event": "resume", "time": 1_780_000_500.0, "update": 90, "window": 93}) + "\n"
        )
    story = read_story(run_dir)
    assert story.status == "in progress"
    assert "snugfit resume" not in make_page(run_dir).text


def test_the_headline_tells_the_outcome(run_dir: Path) -> None:
    page = make_page(write_run(run_dir, updates=90, total_updates=200, status="stopped"))
    for words in (
        "Stopped",
        "Time is up: --stop-after 4m.",
        "90 of 200 updates, 45%",
        "snugfit resume",
        "1.42 GiB",
    ):
        assert words in page.text
    failed = make_page(write_run(run_dir.with_name("other"), updates=90, total_updates=200, status="failed"))
    assert "Failed" in failed.text
    assert "Lower optimizer.adamw.learning_rate." in failed.text


@pytest.mark.parametrize("written", ["accuracy", "max:accuracy"])
def test_the_best_metric_is_the_monitored_one_at_its_update(run_dir: Path, written: str) -> None:
    write_run(run_dir, updates=100, evaluations=5)
    spool = run_dir / "events.jsonl"
    text = spool.read_text(encoding="utf-8")
    assert '"best":"accuracy"' in text
    spool.write_text(text.replace('"best":"accuracy"', f'"best":"{written}"'), encoding="utf-8")
    story = read_story(run_dir)
    assert story.monitored == "accuracy"
    assert "not known" not in advise(story).reason
    best = max(story.evaluations, key=lambda event: event["metrics"]["accuracy"])
    page = make_page(run_dir)
    assert (
        f"Best accuracy</dt><dd>{best['metrics']['accuracy']:.4g}<small>at update {best['update']}"
        in page.text
    )


def test_without_a_monitored_metric_no_metric_is_called_the_best(run_dir: Path) -> None:
    write_run(run_dir, updates=100, evaluations=5)
    spool = run_dir / "events.jsonl"
    spool.write_text(
        spool.read_text(encoding="utf-8").replace('"best":"accuracy"', '"best":null'), encoding="utf-8"
    )
    text = make_page(run_dir).text
    assert "Best update</dt><dd>80<small>loss 0.3" in text
    assert "Best loss" not in text


def test_skipped_windows_are_counted_and_many_equal_ones_are_one_line(run_dir: Path) -> None:
    page = make_page(write_run(run_dir, updates=2000, skipped=150))
    assert "150 windows skipped: the gradient is not finite" in page.text
    assert page.text.count('class="mark skipped"') <= 101


def test_skipped_windows_that_differ_only_in_numbers_are_one_line(run_dir: Path) -> None:
    write_run(run_dir, updates=5, skipped=0)
    with (run_dir / "events.jsonl").open("a", encoding="utf-8") as spool:
        for window in (6, 7, 8):
            reason = f"the batch is kept in window-{window}"
            event = {"event": "skipped", "time": 1_780_000_100.0, "window": window, "reason": reason}
            spool.write(json.dumps(event) + "\n")
    text = make_page(run_dir).text
    assert "3 windows skipped, the first: the batch is kept in window-6<" in text
    assert "window-7<" not in text


def test_values_beyond_the_axis_are_told(run_dir: Path) -> None:
    page = make_page(write_run(run_dir, updates=200, metrics=lambda u: {"loss": 5000.0} if u == 77 else {}))
    assert "Training: 1 value above the axis, the furthest 5,000 at update 77." in page.text


def test_a_folder_with_only_a_spool_is_enough_and_a_bad_plan_file_is_replaced(run_dir: Path) -> None:
    write_run(run_dir, updates=5)
    (run_dir / "recipe.yaml").unlink()
    (run_dir / "plan.json").write_text("{", encoding="utf-8")
    page = make_page(run_dir)
    assert "micro_batch" in page.text
    assert "text-classification" in page.text


def test_a_torn_last_line_is_told(run_dir: Path) -> None:
    write_run(run_dir, updates=5, status=None)
    with (run_dir / "events.jsonl").open("a", encoding="utf-8") as spool:
        spool.write('{"event":"upda')
    assert "1 unreadable line left out" in make_page(run_dir).text


def test_a_folder_without_events_is_a_user_error_and_gets_no_page(run_dir: Path) -> None:
    run_dir.mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"events\.jsonl"):
        write_report(run_dir)
    (run_dir / "events.jsonl").touch()
    with pytest.raises(RunFolderError, match="no event has been written yet"):
        write_report(run_dir)
    assert not (run_dir / "report.html").exists()


def test_a_page_that_cannot_be_put_in_place_is_a_user_error_and_leaves_nothing(run_dir: Path) -> None:
    write_run(run_dir, updates=5)
    (run_dir / "report.html").mkdir()
    before = {*run_dir.iterdir()}
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_report(run_dir)
    assert {*run_dir.iterdir()} == before


def test_the_report_needs_no_heavy_import() -> None:
    code = (
        "import sys, snugfit.report.page; print({'torch', 'yaml', 'matplotlib', 'numpy'} & set(sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_a_message_with_what_is_no_character_is_written_by_its_number(tmp_path: Path) -> None:
    path = replace_page(tmp_path / "page.html", "no way \udcff")
    assert path.read_text(encoding="utf-8") == "no way \\udcff"
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
