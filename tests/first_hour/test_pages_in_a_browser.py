"""The pages as a browser draws them: no text is cut off, hard to see, over another one or out of the window, on a phone and in dark colours either."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snugfit.display.notebook import NotebookScreen
from snugfit.display.terminal import TerminalDisplay
from snugfit.doctor.check_tokens import TokenView
from snugfit.doctor.examination import Examination
from snugfit.doctor.findings import PITFALLS, Certainty, Finding
from snugfit.doctor.page import write_examination
from snugfit.planner.answers.answer import Timeline
from snugfit.planner.trace.memory_breakdown import MemoryUse, Piece, Spike
from snugfit.report.evaluation_page import write_evaluation_page
from snugfit.report.memory_page import write_memory_page
from snugfit.report.page import write_report
from snugfit.report.plan_page import write_plan_page
from snugfit.results.evaluation_details import ClassCounts, EvaluationDetails, ProbabilityBin, WorstRow
from snugfit.results.shown import Shown
from snugfit.results.verdicts import Law, Trial, Verdict
from snugfit.run.evaluation import Evaluation
from snugfit.run.from_python import ModulePlan
from snugfit.run.training.result import RunResult
from snugfit.tools.certify.page import ModelCertificate, write_certificate
from snugfit.tools.cross_validation.page import render_cv_page
from snugfit.tools.find_batch.page import write_batch_page
from snugfit.tools.find_lr.door import FoundRate
from snugfit.tools.find_lr.page import write_lr_page
from snugfit.tools.profile.page import write_profile_page
from snugfit.tools.tune.page import render_tune_page
from tests.first_hour.browser import CHROMIUM, measured
from tests.unit.display import test_notebook as of_notebook
from tests.unit.report.fake_run import write_run
from tests.unit.report.test_page import CASES
from tests.unit.report.test_plan_page import ANSWERS
from tests.unit.tools import test_find_pages as of_searches
from tests.unit.tools.cross_validation import test_page as of_folds
from tests.unit.tools.profile import test_page as of_profile
from tests.unit.tools.tune import test_page as of_trials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"),
]
LONG = "out of memory: /a/long/path/of/a/file/that/never/ends/and/has/no/break/anywhere/model.safetensors"


def reports(folder: Path) -> list[Path]:
    pages = []
    for name, make in CASES.items():
        run = folder / name.replace(" ", "-")
        run.mkdir()
        pages.append(shutil.copy(write_report(make(run)), folder / f"{run.name}.html"))
    return [Path(page) for page in pages]


def plans(folder: Path) -> list[Path]:
    return [write_plan_page(make(), folder / f"{make.__name__}.html") for make in ANSWERS]


def searches(folder: Path) -> list[Path]:
    folds = [of_folds.score(number, 0.5 + number / 50) for number in range(1, 13)]
    cv = render_cv_page(of_folds.found(*folds, notes=(LONG,)))
    trials = [of_trials.trial(number, number / 20, rate=10 ** (-5 + number / 6)) for number in range(1, 16)]
    failed = of_trials.trial(16, None, "failed", reason=LONG)
    tune = render_tune_page(of_trials.found(*trials, failed, planned=16))
    for name, page in (("cv", cv), ("tune", tune)):
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return sorted(folder.glob("*.html"))


def details(count: int) -> EvaluationDetails:
    """An evaluation of so many classes."""
    classes = tuple(f"{'news of the day' if number % 2 else 'Sports'} {number}" for number in range(count))
    confusion = {(true, told): true + told for true in range(count) for told in (true, (true + 1) % count)}
    cells = {"title": "a short one", "text": "words and words " * 20}
    worst = [
        WorstRow(line, f"line {line}", 2.3, classes[0], classes[1], 0.1, 0.8, cells) for line in range(2, 8)
    ]
    counts = [ClassCounts(number, 2 * number + 1, 3 * number) for number in range(count)]
    bins = [ProbabilityBin(10, each / 10, each / 11) for each in range(3, 10)]
    return EvaluationDetails(sum(confusion.values()), "row", classes, counts, confusion, bins, worst=worst)


SCORES = {"loss": 0.5, "macro_precision": 0.25}


def evaluations(folder: Path) -> list[Path]:
    numbers = [(each / 7, each / 6 - 2) for each in range(80)]
    worst = [WorstRow(3, "line 4", 8.1, "11.4", "3.2", cells={"rooms": "4", "built": "1974"})]
    kinds = {
        "few": details(5),
        "many": details(60),
        "numbers": EvaluationDetails(80, numbers=numbers, worst=worst),
        "alone": EvaluationDetails(80),
    }
    return [
        write_evaluation_page("runs/news/1", "test.csv", SCORES, kind, folder / f"{name}.html")
        for name, kind in kinds.items()
    ]


def certificate() -> ModelCertificate:
    """A certificate with a law of each verdict."""
    trials = (
        Trial("8 micro-batches of 1", 3.1e-16, "encoder.layers.0.mlp.gate_proj.weight"),
        Trial("halves", 0.5, "a.weight"),
    )
    module = "encoder.layers.11.self_attention.output_projection"
    reasons = ("its forward mixes the rows of a micro-batch", "it keeps a running mean of what it has seen")
    laws = (
        Law("accumulation", Verdict.BROKEN, 0.5, 1e-10, "a.weight", module, reasons, trials),
        Law("resume", Verdict.HELD, 0.0, 0.0, trials=(Trial("stopped after 2 of 4 updates", 0.0, ""),)),
        Law("ranks", Verdict.EXEMPT, None, 1e-10, reasons=("not certified, for want of two ranks",)),
    )
    conditions = ("dropout is off, as its numbers are drawn anew in each split", "weights are in float64")
    return ModelCertificate(
        "sentence-transformers/all-MiniLM-L6-v2", laws, "float64", "cpu", 8, None, conditions, 1.5
    )


def found_rate() -> FoundRate:
    falling = of_searches.falling()
    parts = {"encoder.embeddings": falling, "classifier": falling}
    return FoundRate("news", falling, parts, {"learning_rate": 1.5e-3, "weight_decay": 0.01})


def examination() -> Examination:
    findings = [
        Finding(
            pitfall,
            certainty,
            f"{place + 3} of 4,096 rows are {PITFALLS[pitfall]}",
            where,
            evidence,
            "data: {validation: {share: 0.1, group: author_of_the_text}}",
        )
        for place, (pitfall, certainty, where, evidence) in enumerate(
            (
                ("leakage", Certainty.CERTAIN, "data.validation", (LONG, "line 7: 'words and words'")),
                ("truncation", Certainty.LIKELY, "data.max_length", ()),
                (
                    "decay_on_vectors",
                    Certainty.WORTH_A_LOOK,
                    "encoder.layers.11.self_attention.output_projection.bias",
                    ("48 of 120",),
                ),
            )
        )
    ]
    view = TokenView("[CLS] the title [SEP] words and words [SEP]", 12, {"[CLS]": 1, "[SEP]": 2}, None, True)
    return Examination.of(
        "news", findings, ["recipe", "rows", "model"], ["two ranks: there is one device"], [view]
    )


def memory(**changes: Any) -> MemoryUse:
    """Memory of an update of a few megabytes, with names as long as those of transformers."""
    module = "model.layers.11.self_attention.output_projection"
    kinds = ("weights", "optimizer", "gradients", "activations", "temporaries", "inputs")
    steps = [f"{phase} {number}" for number in range(1, 5) for phase in ("forward", "backward")]
    levels = {
        kind: tuple((place + 2) * (step % 5 + 1) * 2**20 for step in range(len(steps)))
        for place, kind in enumerate(kinds)
    }
    pieces = tuple(
        Piece(
            kind,
            module,
            (9 - place) * 2**20,
            place + 1,
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
        )
        for place, kind in enumerate(kinds)
    )
    spikes = tuple(
        Spike((9 - place) * 2**20, step, module, "aten.mm.default", "activations")
        for place, step in enumerate(steps)
    )
    timeline = Timeline(tuple(steps), tuple(place / 10 for place in range(len(steps))), levels)
    by_kind = {kind: levels[kind][4] for kind in kinds}
    return replace(
        of_profile.use(),
        at_bytes=sum(by_kind.values()),
        by_kind=by_kind,
        pieces=pieces,
        spikes=spikes,
        timeline=timeline,
        **changes,
    )


def tools(folder: Path) -> list[Path]:
    for name in ("rate", "doubt"):
        (folder / name).mkdir()
    found = found_rate()
    doubted = replace(found.test, doubts=("the rules are 50 times apart. Try a short run with each",))
    first = replace(
        of_profile.profile(folder).operators[0],
        host_seconds=0.001,
        shapes="8×3, 3×4",
        line="net.py(12): forward",
    )
    profile = of_profile.profile(
        folder,
        device={"name": "NVIDIA H100 80GB HBM3", "kind": "cuda", "calibrated": False},
        phases={
            "data": 0.02,
            "forward": 0.04,
            "loss": 0.01,
            "backward": 0.08,
            "adjust": 0.01,
            "optimizer": 0.03,
            "techniques": 0.01,
        },
        limits={"data": 0.04, "launch": 0.03, "memory": 0.06, "compute": 0.07},
        operators=tuple(
            replace(
                first, name=f"aten::_scaled_dot_product_{each}", module=f"encoder.layers.{each}.attention"
            )
            for each in range(12)
        ),
        memory=(memory(), memory(basis="predicted")),
        notes=(LONG,),
        table="\n".join(
            "Name                  Self CPU %      Self CPU      CPU total      # of Calls  " * 2
            for _ in range(4)
        ),
    )
    return [
        write_certificate(certificate(), folder),
        write_examination(examination(), folder),
        write_lr_page(found.name, found.test, found.parts, found.settings, folder / "rate").rename(
            folder / "find_lr.html"
        ),
        write_lr_page(found.name, doubted, {}, {}, folder / "doubt").rename(folder / "no_rate.html"),
        write_batch_page("news", of_searches.sizes(), folder),
        write_profile_page(profile, folder / "profile.html"),
        write_memory_page("news", memory(ran_out=LONG), folder / "out_of_memory.html", again="the window"),
        write_memory_page(
            "news", memory(of="an evaluation"), folder / "memory.html", again="the scoring of an example"
        ),
    ]


NOTEBOOK = """<!doctype html><style>body{{margin:0;font:14px sans-serif;color:#212121;background:#fff}}
@media (prefers-color-scheme:dark){{body{{color:#e0e0e0;background:#111}}}}</style>{}"""


def notebooks(folder: Path) -> list[Path]:
    """Outputs of cells: results as they show themselves, and a run that is going on and has ended."""
    run = write_run(folder / "run")
    write_report(run)
    result = RunResult(
        str(run),
        "stopped",
        LONG,
        True,
        90,
        1.5,
        {"update": 60, "metrics": SCORES},
        {"metrics": SCORES},
        80.0,
        12.0,
        2**30,
    )
    shown: dict[str, Shown] = {
        "plan": ModulePlan(**vars(ANSWERS[0]())),
        "result": result,
        "certificate": certificate(),
        "rate": found_rate(),
        "profile": of_profile.profile(folder, memory=(memory(),)),
        "evaluation": Evaluation(
            "runs/news/1", "test.csv", SCORES, 45, details(5), {"no text": 3}, {"loss": 1.6}
        ),
        "examination": examination(),
        "batch": of_searches.sizes(),
    }
    outputs = {name: result._repr_html_() for name, result in shown.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, events in (("going on", 3), ("over", None)):
            outputs[name] = live(patch, events)
    paths = {name: folder / f"{name}.html" for name in outputs}
    for name, path in paths.items():
        path.write_text(NOTEBOOK.format(outputs[name]), encoding="utf-8")
    return list(paths.values())


def live(patch: pytest.MonkeyPatch, count: int | None) -> str:
    """What stands in the cell of a run after so many of its events."""
    last = ""

    class Handle:
        def update(self, output: Any) -> None:
            nonlocal last
            last = output.data

    patch.setattr("IPython.display.display", lambda output, **_: Handle())
    metrics = {"loss": 0.5, "accuracy": 0.75, "macro_f1": 0.5, "auroc": 0.8, "macro_precision": 0.7}
    evaluation = {**of_notebook.EVALUATION, "metrics": metrics}
    warning = {"event": "warning", "message": f"a warning about {LONG}"}
    end = {**of_notebook.END, "status": "failed", "stop_reason": LONG}
    events = [
        of_notebook.RUN,
        warning,
        of_notebook.update(1),
        evaluation,
        {**evaluation, "update": 4, "best": False},
        end,
    ]
    with TerminalDisplay(screen=NotebookScreen()) as display:
        for event in events[:count]:
            display(event)
        shown = last
    return shown if count is not None else last


@pytest.mark.parametrize("write", [reports, plans, searches, evaluations, tools, notebooks])
def test_every_text_can_be_read(write: Callable[[Path], list[Path]], tmp_path: Path) -> None:
    pages = write(tmp_path)
    (tmp_path / "browser").mkdir()
    found = measured(pages, tmp_path / "browser")
    assert {name: faults for name, (_, faults) in found.items() if faults} == {}
    assert len(found) == 4 * len(pages) and min(texts for texts, _ in found.values()) > 5


def test_what_cannot_be_read_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<div style='width:99px;overflow:hidden;white-space:nowrap'>too long for the box that it is in</div>"
        "<div style='width:900px'>a wide one</div>"
        "<span style='position:absolute;top:99px'>under</span><span style='position:absolute;top:99px'>above</span>"
        "<p style='color:#999'>pale</p><style>@media (prefers-color-scheme:dark){p{background:#000}}</style>"
    )
    browser = tmp_path / "browser"
    browser.mkdir()
    faults = [
        "the page is 908 wide in a window of 390",
        "cut off: too long for the box that it is in",
        "hard to see, 2.8 to 1: pale",
        "one over the other: under | above",
    ]
    assert measured([page], browser, [390]) == {
        "page.html 390 light": (5, faults),
        "page.html 390 dark": (5, [each for each in faults if not each.startswith("hard")]),
    }
