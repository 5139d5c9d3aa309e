"""A certificate's page and its section in a run's report, from the folder alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from snugfit.cli import main
from snugfit.report.page import write_report
from snugfit.results.verdicts import Certificate, Law, Trial, Verdict
from snugfit.tools.certify.door import add_to_run
from snugfit.tools.certify.page import render_certificate, write_certificate
from snugfit.tracking.spool import Spool, read_events
from snugfit.tracking.translate import to_batch

BROKEN = Law(
    "accumulation",
    Verdict.BROKEN,
    0.5,
    1e-10,
    "a.weight",
    "mix",
    ("mixes <rows>",),
    (Trial("halves", 0.5, "a.weight"),),
)
HELD = Law("resume", Verdict.HELD, 0.0, 0.0)
EXEMPT = Law("ranks", Verdict.EXEMPT, None, 1e-10, reasons=("not certified, for want of two ranks",))


def certificate(*laws: Law) -> Certificate:
    return Certificate("mine", laws, "float64", "cpu", 8, None, ("dropout is off",), 1.5)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs/mine/1"
    with Spool(folder / "events.jsonl") as spool:
        spool.append("run", name="mine", id="1")
        spool.append("update", update=1, window=1, metrics={"loss": 1.0})
        spool.append("end", status="finished", updates=1)
    return folder


def test_the_page_says_which_law_is_broken_where_and_by_how_much():
    page = render_certificate(certificate(BROKEN, HELD, EXEMPT)).replace("<wbr>", "")
    assert "1 broken" in page and "mixes &lt;rows&gt;" in page
    assert "module: mix" in page and "furthest off: a.weight" in page
    assert "error 5.0e-01, bound 1e-10" in page and "the same bit for bit" in page
    assert "not certified, for want of two ranks" in page and "Dropout is off." in page
    assert "<script" not in page and "http" not in page


def test_an_error_is_drawn_by_its_digits_and_the_bound_as_a_line():
    law = Law("accumulation", Verdict.HELD, 1e-15, 1e-10)
    page = render_certificate(certificate(law))
    assert 'width="11.8%"' in page  # two of 17 digits
    assert 'x1="41.2%"' in page  # seven of 17


def test_all_laws_hold_only_where_none_is_broken(tmp_path):
    page = write_certificate(certificate(HELD, EXEMPT), tmp_path).read_text()
    assert "All laws hold" in page and "broken" not in page.partition("<body>")[2]


def test_a_run_shows_its_certificate_and_its_tracker_gets_it(run):
    before = write_report(run).read_text()
    add_to_run(run, certificate(BROKEN, HELD, EXEMPT))
    page = write_report(run).read_text()
    assert "<h2>Laws</h2>" in page and "accumulation = full batch" in page
    assert "<h2>Laws</h2>" not in before
    assert Certificate.from_dict(json.loads((run / "certify.json").read_text())).broken == (BROKEN,)
    batch, malformed = to_batch(read_events(run / "events.jsonl"))
    assert malformed == 0
    assert {key: value for key, value in batch.tags.items() if key.startswith("certified.")} == {
        "certified.accumulation": "broken, error 5.0e-01, bound 1e-10",
        "certified.resume": "held, error 0.0e+00, bound 0e+00",
        "certified.ranks": "exempt, bound 1e-10",
    }


def test_a_certificate_of_a_later_day_does_not_lengthen_the_run(run):
    events = read_events(run / "events.jsonl")
    lines = [{**event, "time": 100.0 + place} for place, event in enumerate(events)]
    lines.append({**certificate(HELD).as_dict(), "event": "certified", "time": 90_000.0})
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "25h" not in write_report(run).read_text()
    from snugfit.report.story import read_story

    assert read_story(run).seconds == 2.0


RECIPE = """\
name: mine
task: python
model: parts:build
data: {train: parts:rows, validation: null}
train: {updates: 4, global_batch: 4}
optimizer: {sgd: {learning_rate: 0.1}}
"""
PARTS = """\
import torch
from torch import nn

class Mixing(nn.Module):
    def forward(self, rows):
        return rows - rows.mean(0)

def build():
    return nn.Sequential(nn.Linear(2, 4), %s, nn.Linear(4, 2))

def rows():
    return [(torch.tensor([float(n), 1.0]), n %% 2) for n in range(16)]
"""


@pytest.mark.parametrize(("middle", "code"), [("nn.Tanh()", 0), ("Mixing()", 1)])
def test_the_command_keeps_what_it_finds_and_says_by_its_code_whether_a_law_is_broken(
    middle, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.delitem(__import__("sys").modules, "parts", raising=False)
    (tmp_path / "parts.py").write_text(PARTS % middle)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    command = ["certify", str(tmp_path / "mine.yaml"), f"output={tmp_path / 'runs'}", "--no-ranks", "--json"]
    assert main(command) == code
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["broken"] == (["accumulation"] if code else [])
    (folder,) = (tmp_path / "runs/mine/tools/certify").iterdir()
    kept = json.loads((folder / "found.json").read_text())
    assert kept["laws"] == printed["laws"] and kept["identity"]["recipe"]
    assert Path(printed["page"]) == folder / "certify.html" and Path(printed["page"]).exists()


def test_a_run_without_a_recipe_is_refused(run, capsys):
    assert main(["certify", str(run)]) == 2
    assert "has no recipe.yaml" in capsys.readouterr().err
