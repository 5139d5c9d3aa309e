"""The command line: what is printed where, exit codes, and errors without tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from PIL import Image

import snugfit.cli.app
import snugfit.deliver.predict
import snugfit.planner.worker
import snugfit.report.page
import snugfit.run.from_recipe
import snugfit.tracking.sender
from snugfit import tasks, techniques
from snugfit.cli import main
from snugfit.errors import DataError, Interrupted, SnugfitWarning, TrainingFailed
from snugfit.planner.answers.answer import Largest
from snugfit.recipe import load_recipe
from snugfit.recipe.declarations import unused
from snugfit.recipe.reference import entries
from snugfit.run.training.result import RunResult
from snugfit.system.processes import record_failure
from tests.unit.report.fake_plan import qlora_on_a_4090, seventy_billion_that_do_not_fit

COMMANDS = [
    "init",
    "train",
    "resume",
    "evaluate",
    "predict",
    "report",
    "plan",
    "techniques",
    "tasks",
    "schema",
    "certify",
    "cv",
    "doctor",
    "env",
    "find lr",
    "find batch",
    "profile",
    "track replay",
]
RECIPE = "task: text-classification\nmodel: some/encoder\ndata: {train: rows.csv}\n"
RUN = {"event": "run", "time": 0.0, "name": "my", "id": "1", "recipe": {}, "plan": {}, "data": {}}


def result(status: str = "finished") -> RunResult:
    return RunResult(
        run_dir="runs/my/1",
        status=status,
        stop_reason=None,
        resumable=status == "stopped",
        updates=3,
        epochs=1.0,
        best={"update": 3, "metrics": {"accuracy": 0.5}},
        last={"metrics": {"loss": float("nan")}},
        seconds=1.5,
        examples_per_second=20.0,
        peak_memory_bytes=100,
    )


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(RECIPE)
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    return path


@pytest.fixture
def train(monkeypatch):
    """Training replaced by a record of its calls; `.outcome` is what it returns or raises."""
    record = SimpleNamespace(calls=[], outcome=result(), events=[])

    def fake(recipe, options, display, changes=(), *, allow_code=False):
        record.calls.append((recipe, options))
        for event in record.events:
            display(event)
        if isinstance(record.outcome, BaseException):
            raise record.outcome
        return record.outcome

    monkeypatch.setattr(snugfit.run.from_recipe, "train_recipe", fake)
    monkeypatch.setattr(snugfit.run.from_recipe, "resume_run", fake)
    monkeypatch.setattr(snugfit.run.newest, "run_to_resume", Path)
    one_device = SimpleNamespace(plan=SimpleNamespace(devices=1), code={})
    monkeypatch.setattr(snugfit.run.from_recipe, "recipe_of", lambda run, changes, allow_code: one_device)
    return record


def last_line(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1], parse_constant=pytest.fail)


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1), ("stopped", 75)])
def test_the_exit_code_says_how_the_run_ended(recipe, train, status, code):
    train.outcome = result(status)
    assert main(["train", str(recipe)]) == code
    assert main(["resume", "runs/my/1"]) == code


def test_the_last_line_is_one_strict_json_object(recipe, train, capsys):
    assert main(["train", str(recipe), "--json"]) == 0
    found = last_line(capsys)
    assert (found["run_dir"], found["status"], found["tracker_run_id"]) == ("runs/my/1", "finished", None)
    assert found["best"] == {"update": 3, "metrics": {"accuracy": 0.5}}
    assert found["last"] == {"metrics": {"loss": "NaN"}}


def test_progress_goes_to_stderr_and_quiet_shows_none(recipe, train, capsys):
    train.events = [RUN, {"event": "warning", "message": "the head is new"}]
    main(["train", str(recipe)])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "warning: the head is new" in shown.err
    main(["train", str(recipe), "--quiet"])
    assert capsys.readouterr() == ("", "")


def test_overrides_and_options_reach_the_run(recipe, train):
    recipe.with_name("rows.csv").write_text("a,b,label\nx,y,z\n")
    arguments = [
        "train.epochs=2",
        str(recipe),
        "data.text=[a, b]",
        "--stop-after",
        "2m",
        "--fast-dev-run",
    ]
    assert main(["train", *arguments]) == 0
    ((given, options),) = train.calls
    assert (given.train.epochs, given.data.text) == (2, ("a", "b"))
    assert (options.stop_after_seconds, options.fast_dev_run, options.overfit_batches) == (120, True, None)


def test_resume_takes_a_run_and_a_time(train):
    assert main(["resume", "runs/my/1", "--stop-after", "30s", "--json"]) == 0
    ((run, options),) = train.calls
    assert (str(run), options.stop_after_seconds) == ("runs/my/1", 30)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["train", "none.yaml"], "SettingError", "there is no recipe none.yaml"),
        (["train", "a.yaml", "b.yaml"], "SettingError", "one recipe at a time"),
        (["train"], "SettingError", "Name a recipe, or what to train on"),
        (["train", "train.epochs=1"], "SettingError", "Name a recipe, or what to train on"),
        (["train", "my.yaml", "--data", "a.csv"], "SettingError", "data.train=FILE"),
        (["train", "my.yaml", "train.epoch=1"], "SettingError", "Did you mean 'epochs'"),
        (["train", "my.yaml", "--stop-after", "soon"], "SettingError", "--stop-after: 'soon' cannot be read"),
        (
            ["train", "my.yaml", "--fast-dev-run", "--overfit-batches", "2"],
            "SettingError",
            "Give one of them",
        ),
        (["train", "my.yaml", "--overfit-batches", "0"], "UsageError", "--overfit-batches"),
        (["train", "--data", "none.csv"], "DataError", "no file none.csv"),
        (["train", "--fast-dev"], "UsageError", "--fast-dev"),
        (
            ["train", "my.yaml", "--lr", "1"],
            "UsageError",
            "such as train.epochs=3: snugfit recipe lr finds it",
        ),
        (["train", "my.yaml", "train.global-batch=3"], "SettingError", "neither a file nor a setting"),
        (["train", "my.yaml", "train.epochs", "=", "3"], "SettingError", "and its value, without spaces"),
        (["plan", "my.yaml", "--device", "rtx9999"], "SettingError", "no 'rtx9999' in the catalogue"),
        (["trian"], "UsageError", "trian"),
        (["predict", "runs/my/1"], "UsageError", "DATA"),
        (["predict", "runs/my/1", "new.csv"], "UsageError", "--output"),
        (["track"], "UsageError", "snugfit track --help"),
        (["plan"], "SettingError", "Name a recipe"),
        (["resume", "nowhere"], "RunFolderError", "nowhere"),
        (["report", "nowhere"], "RunFolderError", "nowhere"),
        (["track", "replay", "nowhere"], "RunFolderError", "nowhere"),
        (["techniques", "emma"], "SettingError", "Did you mean 'ema'"),
        (["tasks", "text-clasification"], "SettingError", "Did you mean 'text-classification'"),
        (["techniques", "fin_tune"], "SettingError", "Did you mean 'fine_tune'"),
        (["schema", "-o", "my.yaml/schema.json"], "RunFolderError", "--output"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(recipe, tmp_path, capsys, arguments, kind, words):
    before = sorted(tmp_path.rglob("*"))
    assert main([*arguments, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert words in shown.err
    assert "Traceback" not in shown.err
    found = json.loads(shown.out)
    assert found == {"error": {"kind": kind, "message": shown.err.removeprefix("error: ").strip()}}
    assert main(arguments) == 2
    assert capsys.readouterr().out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failed_run_is_one_message_and_exit_code_1(recipe, train, capsys):
    train.outcome = TrainingFailed("window 7: the loss is not finite")
    assert main(["train", str(recipe), "--json"]) == 1
    assert last_line(capsys) == {
        "error": {"kind": "TrainingFailed", "message": "window 7: the loss is not finite"}
    }


def test_an_error_of_our_own_keeps_its_traceback_without_secrets(recipe, train, capsys):
    train.outcome = ZeroDivisionError("division of https://me:SECRET@host by zero")
    assert main(["train", str(recipe), "--json"]) == 1
    printed = capsys.readouterr()
    message = "division of https://me:***@host by zero"
    assert json.loads(printed.out.splitlines()[-1]) == {
        "error": {"kind": "ZeroDivisionError", "message": message}
    }
    assert printed.err.startswith("reading the data and the model …\nTraceback (most recent call last):")
    assert printed.err.endswith(f"ZeroDivisionError: {message}\n")
    assert "SECRET" not in printed.err + printed.out


def test_what_a_process_of_several_leaves_of_its_error_is_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    try:
        raise ZeroDivisionError("password=SECRET")
    except ZeroDivisionError as error:
        record_failure(error, 1, self_explanatory=False, final=False, lost=False)
    written = (tmp_path / "error.json").read_text()
    assert "ZeroDivisionError: password=***" in written and '"message": "password=***"' in written
    assert "SECRET" not in written


def test_an_interrupted_command_says_so(recipe, train, capsys):
    train.outcome = KeyboardInterrupt()
    assert main(["train", str(recipe)]) == 130


@pytest.mark.parametrize(("run_dir", "code"), [("runs/a/1", 75), (None, 1)])
def test_a_run_that_is_interrupted_twice_can_go_on_where_it_has_a_checkpoint(
    recipe, train, capsys, run_dir, code
):
    train.outcome = Interrupted(run_dir)
    assert main(["train", str(recipe), "--json"]) == code
    assert ("snugfit resume runs/a/1" in last_line(capsys)["error"]["message"]) == (code == 75)


@pytest.fixture
def rows(tmp_path) -> str:
    lines = (f"{number % 7},{'ab'[number % 2]},{number % 12}" for number in range(60))
    (tmp_path / "news.csv").write_text("\n".join(["size,kind,stars", *lines]))
    return "news.csv"


def test_data_alone_are_trained_on_by_the_recipe_that_is_written_for_them(tmp_path, train, rows, capsys):
    train.events = [RUN]
    assert main(["train", "--data", rows, "--label", "kind", "--model", "mlp", "train.epochs=1"]) == 0
    shown = capsys.readouterr().err
    assert "recipe   news.yaml\n" in shown
    assert "task     tabular-classification: 60 rows, 2 columns, 2 classes in column 'kind'\n" in shown
    ((recipe, _),) = train.calls
    assert load_recipe(tmp_path / "news.yaml", ["train.epochs=1"]) == recipe
    assert (recipe.model, recipe.train.epochs, recipe.name) == ("mlp", 1, "news")
    assert main(["train", "--data", rows, "--task", "tabular-regression", "--quiet"]) == 0
    assert train.calls[-1][0].task == "tabular-regression" and not capsys.readouterr().err


def test_the_recipe_of_data_replaces_no_file_and_is_taken_again(tmp_path, train, rows, capsys):
    train.events = [RUN]
    (tmp_path / "news.yaml").write_text("mine")
    for _ in range(2):  # the second time it is there already
        assert main(["train", "--data", rows]) == 0
    shown = capsys.readouterr().err
    assert "recipe   news-2.yaml, as it is there\n" in shown and "or       --task tabular-" in shown
    assert (tmp_path / "news.yaml").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.glob("*.yaml")) == ["news-2.yaml", "news.yaml"]


def test_nothing_is_written_when_the_data_are_of_no_use(tmp_path, train, rows):
    (tmp_path / rows).write_text("label\na\na\na\n")
    assert main(["train", "--data", rows]) == 2
    assert [path.name for path in tmp_path.iterdir()] == [rows]


def test_what_is_refused_before_a_run_begins_leaves_nothing_behind(tmp_path, train, capsys):
    for colour in ("red", "blue"):
        (tmp_path / "photos" / colour).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (20, 20 + number), colour).save(tmp_path / f"photos/{colour}/{number}.png")
    train.outcome = DataError("data", "1 row cannot be used", "Correct it.")
    assert main(["train", "--data", "photos"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    assert "removed  photos.yaml, " in capsys.readouterr().err
    (tmp_path / "runs" / "photos").mkdir(parents=True)  # where a run has begun, it is of that recipe
    assert main(["train", "--data", "photos"]) == 2
    assert (tmp_path / "photos.yaml").exists()


def test_what_cannot_be_removed_again_does_not_hide_why_nothing_was_trained(
    tmp_path, monkeypatch, train, capsys
):
    def held(path, **_):
        raise PermissionError(path)

    (tmp_path / "rows.csv").write_text("size,kind\n" + "1,a\n2,b\n3,a\n4,b\n" * 5)
    train.outcome = DataError("data", "1 row cannot be used", "Correct it.")
    monkeypatch.setattr(Path, "unlink", held)
    assert main(["train", "--data", "rows.csv"]) == 2
    assert "1 row cannot be used" in capsys.readouterr().err


def test_evaluate_and_predict_print_what_they_found(monkeypatch, capsys):
    calls = []

    def evaluate(source, data, metrics, **options):
        calls.append((source, data, metrics, options))
        return {"metrics": {"loss": 0.25, "accuracy": float("nan")}, "rows": 1200, "skipped": {}}

    def predict(source, data, output, **options):
        calls.append((source, data, str(output), options))
        return {"output": str(output), "rows": 2, "predictions": {"a": 2}}

    monkeypatch.setattr(snugfit.deliver.predict, "evaluate_file", evaluate)
    monkeypatch.setattr(snugfit.deliver.predict, "predict_file", predict)
    assert (
        main(["evaluate", "runs/my/1", "test.csv", "--metrics", "accuracy, mae", "--bad-rows", "skip"]) == 0
    )
    assert capsys.readouterr().out.split() == ["metrics", "loss", "0.25,", "accuracy", "nan", "rows", "1,200"]
    assert main(["evaluate", "runs/my/1", "test.csv", "--json"]) == 0
    assert last_line(capsys)["metrics"] == {"loss": 0.25, "accuracy": "NaN"}
    store, more = ["--uri", "http://host:5000"], ["--with", "runs/my/2", "--views", "4"]
    assert main(["predict", "models:/my@champion", "new.csv", "-o", "out.csv", *store, *more, "--json"]) == 0
    assert last_line(capsys) == {"output": "out.csv", "rows": 2, "predictions": {"a": 2}}
    assert calls == [
        (
            "runs/my/1",
            "test.csv",
            ("accuracy", "mae"),
            {
                "others": (),
                "views": 1,
                "num_beams": 1,
                "memory": None,
                "bad_rows": "skip",
                "uri": None,
                "allow_code": False,
                "page": None,
            },
        ),
        (
            "runs/my/1",
            "test.csv",
            (),
            {
                "others": (),
                "views": 1,
                "num_beams": 1,
                "memory": None,
                "bad_rows": "fail",
                "uri": None,
                "allow_code": False,
                "page": None,
            },
        ),
        (
            "models:/my@champion",
            "new.csv",
            "out.csv",
            {
                "others": ("runs/my/2",),
                "views": 4,
                "memory": None,
                "top": 1,
                "proba": False,
                "num_beams": 1,
                "bad_rows": "fail",
                "uri": "http://host:5000",
                "allow_code": False,
            },
        ),
    ]


class NoWorker:
    """In the place of the planner's process, where nothing is planned."""

    loaded: tuple[str, ...] = ()

    def __init__(self, hide_gpu, watch, best_so_far):
        assert hide_gpu, "nothing is measured"
        assert best_so_far, "Ctrl-C gives the best plan so far"

    def load(self, *modules) -> None:
        NoWorker.loaded = modules

    def close(self) -> None:
        pass


@pytest.fixture
def planned(monkeypatch) -> list[SimpleNamespace]:
    """What the planner was asked; it answers with a plan that is made up."""
    asked: list[SimpleNamespace] = []

    def plan(recipe, target, worker, *, anew):
        asked.append(SimpleNamespace(recipe=recipe, target=target))
        warnings.warn("ema: comes too late.", SnugfitWarning, stacklevel=1)
        return qlora_on_a_4090() if target.memory is None else seventy_billion_that_do_not_fit()

    monkeypatch.setattr(snugfit.planner.worker, "Worker", NoWorker)
    monkeypatch.setattr(snugfit.run.plans.recipe_plan, "plan_recipe", plan)
    return asked


def test_plan_asks_for_the_goal_that_is_named(recipe, planned, capsys):
    assert main(["plan", str(recipe), "--goal", "smallest", "--worth", "2", "--seconds", "7", "--json"]) == 0
    ((target,),) = ([each.target for each in planned],)
    # which would choose for another goal without
    assert last_line(capsys)["command"] == f"snugfit train {recipe} plan.goal=smallest plan.worth=2.0"
    assert (target.goal, target.worth, target.seconds) == ("smallest", 2.0, 7.0)


def test_plan_asks_for_the_recipe_with_its_overrides_on_the_machine_that_is_named(recipe, planned, capsys):
    machine = ["--device", "rtx4090", "--host-memory", "64GiB", "--fidelity", "mixed", "--no-search"]
    assert main(["plan", str(recipe), "plan.micro_batch=4", *machine, "--json"]) == 0
    answer = last_line(capsys)
    assert answer["fits"] is True and answer["choice"]["micro_batch"] == 2
    asked = "budget.host_memory=64GiB budget.fidelity=mixed"
    assert answer["command"] == f"snugfit train {recipe} plan.micro_batch=4 {asked}"
    assert NoWorker.loaded == (
        "snugfit.run.plans.planning",
        "snugfit.models.transformers_import:import_modeling",
    )
    ((asked, target),) = [(each.recipe, each.target) for each in planned]
    assert asked.plan.micro_batch == 4
    assert (target.device, target.host_memory, target.fidelity, target.search) == (
        "rtx4090",
        64 * 2**30,
        "mixed",
        False,
    )


def test_plan_shows_the_answer_and_says_a_warning_in_one_line(recipe, planned, capsys):
    assert main(["plan", str(recipe)]) == 0
    printed = capsys.readouterr()
    assert (
        printed.out.startswith("Fits: ")
        and "rtx4090" in printed.out
        and f"snugfit train {recipe}" in printed.out
    )
    assert printed.err == "plan     planning …\nwarning: ema: comes too late.\n"


def test_a_plan_that_does_not_fit_is_exit_code_1(recipe, planned, capsys):
    assert main(["plan", str(recipe), "--memory", "24GiB"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("Does not fit: ") and "snugfit train" not in printed


def test_plan_writes_a_page(recipe, planned, tmp_path, capsys):
    assert main(["plan", str(recipe), "--html", str(tmp_path / "new" / "plan.html")]) == 0
    assert "<svg" in (tmp_path / "new" / "plan.html").read_text()
    assert str(tmp_path / "new" / "plan.html") in capsys.readouterr().err


def test_a_page_that_can_be_written_no_more_takes_no_plan_with_it(
    recipe, planned, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("snugfit.deliver.files.check_output", lambda *_: (tmp_path / "file").touch())
    assert main(["plan", str(recipe), "--html", str(tmp_path / "file" / "plan.html")]) == 2
    told = capsys.readouterr()
    assert told.out.startswith("Fits: ") and "the page cannot be written" in told.err


def test_a_page_that_cannot_be_written_is_refused_before_a_plan_is_made(recipe, planned, capsys):
    before = recipe.read_bytes()
    assert main(["plan", str(recipe), "--html", str(recipe)]) == 2
    assert f"--html: {recipe} is the file of the recipe" in capsys.readouterr().err
    assert main(["plan", str(recipe), "--html", str(recipe / "plan.html")]) == 2
    assert f"--html: {recipe / 'plan.html'} cannot be written" in capsys.readouterr().err
    assert main(["plan", str(recipe), "--export", "hf", "-o", str(recipe)]) == 2
    assert f"--output: {recipe} is a file" in capsys.readouterr().err
    assert recipe.read_bytes() == before and planned == []


def test_a_page_that_cannot_be_written_is_refused_before_a_script_is_run(tmp_path, capsys):
    script, file = tmp_path / "train.py", tmp_path / "file"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    file.touch()
    for folder, words in ((file, "is a file"), (file / "page", "cannot be written: ")):
        assert main(["doctor", "--html", str(folder), "--", sys.executable, str(script)]) == 2
        assert f"--html: {folder} {words}" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--memory", "much"], "--memory: 'much' cannot be read"),
        (["--devices", "0"], "--devices: must be at least 1, found 0"),
        (["--link", "nvlink4"], "--link: is between devices, and there is one"),
        (["--max", "batch", "--devices", "2"], "--max: is looked for on one device, and there are 2"),
        (["--max", "batch", "--export", "hf"], "--max: looks for a size, and --export writes the plan"),
        (["--export", "hff"], "--export: no tool 'hff'. Did you mean 'hf'"),
        (["plan.strategy=fsdp-hybrid", "--export", "hf"], "--export: got a plan that shares the work by"),
    ],
)
def test_plan_refuses_a_machine_that_cannot_be(recipe, planned, capsys, options, words):
    assert main(["plan", str(recipe), *options]) == 2
    assert words in capsys.readouterr().err
    assert planned == []


@pytest.mark.parametrize(
    ("what", "unit", "changes"),
    [
        ("batch", "examples", " train.global_batch=12 plan.micro_batch=12"),
        ("sequence", "tokens", " data.max_length=12"),
        ("model", "blocks", None),
    ],
)
def test_the_largest_is_in_the_first_line_and_in_the_command(
    recipe, monkeypatch, capsys, what, unit, changes
):
    asked = []

    def plan(recipe, target, worker, *, anew):
        asked.append(target.largest)
        return replace(qlora_on_a_4090(), command="", largest=Largest(what, 12, 1, 1, unit, 13, 2))

    monkeypatch.setattr(snugfit.planner.worker, "Worker", NoWorker)
    monkeypatch.setattr(snugfit.run.plans.recipe_plan, "plan_recipe", plan)
    assert main(["plan", str(recipe), "--max", what]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"The largest {what} that fits: 12 {unit}: 11.7 GiB of 24 GiB")
    assert asked == [what]
    assert ("snugfit train" in printed) == (changes is not None)
    assert changes is None or printed.rstrip().endswith(f"{recipe}{changes}")


def test_report_and_replay_say_what_they_did(monkeypatch, capsys):
    sent = snugfit.tracking.sender.ReplayResult(3, 0, "abc", "https://me:secret@host")
    monkeypatch.setattr(snugfit.report.page, "write_report", lambda run: run / "report.html")
    monkeypatch.setattr(snugfit.tracking.sender, "replay", lambda run, uri: sent)
    assert main(["report", "runs/my/1", "--json"]) == 0
    assert last_line(capsys) == {"report": "runs/my/1/report.html"}
    assert main(["track", "replay", "runs/my/1", "--json"]) == 0
    assert last_line(capsys) == {"sent": 3, "remaining": 0, "run_id": "abc", "uri": "https://me:***@host"}


@pytest.mark.slow
def test_every_technique_is_listed_and_described(capsys):
    assert main(["techniques"]) == 0
    listing = capsys.readouterr().out
    for name, technique in techniques.discover().items():
        assert name in listing
        assert main(["techniques", name]) == 0
        page = capsys.readouterr().out
        assert technique.card.source in page
        example = yaml.safe_load(page.split("In a recipe:\n")[1])
        Path("example.yaml").write_text(RECIPE + yaml.safe_dump(example))
        assert name in [entry.card.name for entry in load_recipe("example.yaml").all_techniques()]
    assert main(["techniques", "ema", "--json"]) == 0
    (card,) = last_line(capsys)["techniques"]
    assert card["settings"]["decay"] == {"type": "a number", "default": 0.999}


def test_every_task_is_listed_and_described_with_the_settings_that_a_recipe_of_it_takes(capsys):
    assert main(["tasks"]) == 0
    listing = capsys.readouterr().out
    of_data = {entry.key for entry in entries("data")}
    for name, card in tasks.discover().items():
        assert f"{name}  " in listing and card.summary in listing
        assert main(["tasks", name]) == 0
        page = capsys.readouterr().out
        begin = page.splitlines()[-1].split()
        assert begin[:2] == ["snugfit", "init"] and begin[-1] == f"task={name}" and card.rows in page
        assert main(["tasks", name, "--json"]) == 0
        (facts,) = last_line(capsys)["tasks"]
        refused = {f"data.{key}" for section, key in unused(name) if section == "data"}
        assert not refused & set(facts["settings"]) and all(key in page for key in facts["settings"])
        assert refused | set(facts["settings"]) == of_data


def test_the_schema_is_printed_or_written(tmp_path, capsys):
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main(["schema", "-o", "schema.json", "--json"]) == 0
    assert last_line(capsys) == {"schema": "schema.json"}
    assert json.loads((tmp_path / "schema.json").read_text()) == printed
    assert main(["schema", "--json"]) == 0
    assert last_line(capsys) == printed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Example: snugfit {command} " in " ".join(shown.split())
    assert "--json" in shown


def test_help_lists_the_commands_and_no_arguments_are_a_call_for_help(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {command.split()[0]} " in shown for command in COMMANDS)
    assert "..." not in shown.partition("Commands:")[2], "a summary is cut"
    assert main([]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error():
    code = "import sys; from snugfit.cli import main; sys.exit(main(['schema']))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode().splitlines()
    assert all(line.startswith("importing the techniques") for line in said), said


@pytest.mark.slow
def test_what_shows_only_on_the_model_is_said_with_the_recipes_line(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "from torch import nn\nimport torch\n"
        "def make(): return nn.Sequential(nn.Linear(2, 2))\n"
        "def rows(): return [(torch.zeros(2), torch.tensor(0))] * 8\n"
    )
    recipe = tmp_path / "my.yaml"
    recipe.write_text(
        "task: python\nmodel: own:make\ndata: {train: own:rows, validation: null}\n"
        "techniques:\n  - ema\n  - freeze: {patterns: [hed]}\n"
    )
    for command in ("plan", "train"):
        assert main([command, str(recipe)]) == 2
        errors = capsys.readouterr().err
        assert f"{recipe}:6: techniques.freeze.patterns: 'hed' matches no module or parameter" in errors
    assert main(["train", str(recipe), "techniques=[{freeze: {patterns: [haed]}}]", "--no-plan"]) == 2
    assert "override 'techniques=" in capsys.readouterr().err
    assert main(["plan", str(recipe), "techniques=[]", "plan.numerics=tf32"]) == 2
    assert "error: override 'plan.numerics=tf32': plan.numerics: tf32 is not" in capsys.readouterr().err
    recipe.write_text(recipe.read_text().replace("own:rows", "own:raws"))
    assert main(["train", str(recipe), "--no-plan"]) == 2
    assert f"error: {recipe}:3: data.train: " in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.parametrize("code", [0, 75])
def test_the_process_ends_with_the_code_of_its_command(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(snugfit.cli.app, "_main", lambda arguments: code)
    monkeypatch.setattr("snugfit.system.processes.leave", left.append)
    snugfit.cli.run()
    assert left == [code]


INTERRUPTED_IMPORT = """
import sys
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "snugfit.cli.runs":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder)
from snugfit.cli import run
run()
"""


def test_ctrl_c_while_commands_are_imported_is_answered_as_at_any_other_time() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_a_recipe_that_cannot_be_read_starts_no_planner(tmp_path, monkeypatch, capsys):
    started = []
    monkeypatch.setattr("snugfit.planner.worker.Worker", lambda *given, **named: started.append(given))
    (tmp_path / "torn.yaml").write_text("train: {epochs: 1\n")
    for name, words in (("none.yaml", "there is no recipe none.yaml"), ("torn.yaml", "torn.yaml:")):
        assert main(["plan", name]) == 2
        assert words in capsys.readouterr().err
    assert not started
