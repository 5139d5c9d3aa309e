"""The GPU benchmark in tiny on a CPU: whoever has a GPU finds that it runs, and that a fault turns it red."""

from __future__ import annotations

import copy
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu"
HIDDEN = ("typer", "pydantic", "bitsandbytes", "torchao", "mlflow", "datasets")
HIDING = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {HIDDEN} else find(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
"""
"""What Python runs at its start: these libraries are not found, as where they are not installed."""
TOOLS = ("sh", "dirname", "date", "mktemp", "mkdir", "cat", "rm", "gcc", "cc", "as", "ld")
PLANTS = {
    "correct": {
        "split": "laws in fp32",
        "stream": "weight streaming is bit for bit",
        "activation": "activation offload is bit for bit",
        "gradient": "gradient offload keeps its bits",
        "rounded": "fp32 is IEEE",
        "memory": "runs out of memory is run again",
        "wait": "waits for the device once",
        "ranks": "ddp",
        "message": "one message of gradients",
        "compile": "compile gives",
        "packed": "packed rows",
        "turned": "a table is learned",
        "resume": "command line",
        "slot": "answers within a memory",
        "mixed": "certify holds its laws",
    },
    "planner": {"forgotten": "predicted: gpt2: recompute"},
    "claims": {"resident": "8B under a budget", "gone": "streamed nf4 layers"},
    "speed": {"slow": "GPT-2 124M in bf16"},
}
"""Faults that are planted, by command: each with the check that finds it."""


@pytest.fixture(autouse=True)
def imported() -> Iterator[None]:
    """Have the benchmark's own modules importable, and forget them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(GPU))
    yield
    sys.path.remove(str(GPU))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(GPU)):
            del sys.modules[name]


def run(
    tmp_path: Path, command: str, *options: str, to: str = "", **environment: str
) -> tuple[int, dict[str, Any]]:
    """Run a command with `--toy`: its status, and the JSON that it has written, of `all` the one of the command `to`."""
    done = subprocess.run(
        [str(GPU / "run.sh"), command, "--toy", "--out", str(tmp_path / "out"), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, **environment},
        check=False,
    )
    path = tmp_path / "out" / f"{to or command}.json"
    assert path.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    print(done.stdout[-5000:], done.stderr[-2000:])
    return done.returncode, json.loads(path.read_text())


def test_every_command_has_planted_faults() -> None:
    checks = importlib.import_module("checks")
    assert set(checks.COMMANDS) == set(PLANTS)
    for command, plants in PLANTS.items():
        found = {name: each.name for each in checks.checks_of(command) for name in each.plants}
        assert found.keys() == plants.keys()
        for name, text in plants.items():
            assert text in found[name]


def every_result(tmp_path: Path, *options: str, **environment: str) -> dict[str, dict[str, Any]]:
    """Run all commands in tiny, which must be green, and return their JSONs."""
    status, _ = run(tmp_path, "all", *options, to="correct", **environment)
    found = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in PLANTS}
    red = [name for result in found.values() for name in result["summary"]["red"]]
    assert status == 0 and not red, red
    return found


@pytest.mark.longest
def test_all_commands_run_in_tiny_and_are_green(tmp_path: Path) -> None:
    for command, found in every_result(tmp_path).items():
        assert found["toy"] and found["commit"] and found["machine"]["packages"]
        skipped = [name for name, row in found["checks"].items() if row["status"] == "skipped"]
        assert len(skipped) < len(found["checks"]) / 2, (command, skipped)


@pytest.mark.release
def test_all_commands_run_where_libraries_and_git_are_not_installed(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "sitecustomize.py").write_text(HIDING)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in TOOLS:
        if (place := shutil.which(name)) is not None:
            (programs / name).symlink_to(place)
    results = every_result(tmp_path, "--commit", "abc1234", PYTHONPATH=str(shadow), PATH=str(programs))
    for command, found in results.items():
        assert found["commit"] == "abc1234"
        reasons = [row["reason"] for row in found["checks"].values() if row["status"] == "skipped"]
        needs = command in ("correct", "claims")
        assert not needs or any(name in reason for reason in reasons for name in HIDDEN)


def test_a_planted_fault_turns_a_command_red(tmp_path: Path) -> None:
    plant, text = next(iter(PLANTS["planner"].items()))
    status, found = run(tmp_path, "planner", "--plant", plant, "--only", text)
    assert status == 1 and not found["summary"]["green"]
    (red,) = found["summary"]["red"]
    assert text in red and found["checks"][red]["status"] == "failed", found["checks"][red]


LONG = ("slow", "resume", "slot", "gone")
"""Faults whose check is run before a release alone, as it takes half a minute."""


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, marks=[pytest.mark.release] if plant in LONG else [])
        for command, plants in PLANTS.items()
        for plant in plants
        if command != "planner"  # whose check needs what others leave
    ],
)
def test_a_planted_fault_turns_its_check_red(plant: str, tmp_path: Path) -> None:
    checks = importlib.import_module("checks")
    (one,) = [each for command in PLANTS for each in checks.checks_of(command) if plant in each.plants]
    rows: dict[str, Any] = {}
    settings = checks.Settings("cpu", True, tmp_path, plant)
    a_runner(tmp_path, rows, settings=settings, patience=10.0).run([one], time.monotonic() + 600)
    assert rows[one.name]["status"] == "failed", rows


TOUCHING = f"""
import sys, traceback
sys.path[:0] = [{str(GPU)!r}, {str(ROOT / "src")!r}]
sys.modules["torchao"] = None  # which asks: its wheel is there for the checks alone
import torch
touched = []
def touch(*args, **more):
    touched.append("".join(traceback.format_stack(limit=4)[:-1]))
    raise RuntimeError("the GPU is touched")
for owner, names in (
    (torch.cuda, ("is_available", "device_count", "_lazy_init", "current_device", "get_device_capability", "get_device_properties", "mem_get_info")),
    (torch._C, ("_cuda_init", "_cuda_getDevice", "_cuda_getDeviceCount")),
):
    for name in names:
        setattr(owner, name, touch)
import run
run.own_packages()
run.import_all(cuda=True)
sys.exit("".join(touched) or 0)
"""
"""A process that imports what is forked for each check, where there is a GPU that may not be asked for anything."""


def test_what_is_imported_before_checks_are_forked_touches_no_gpu() -> None:
    done = subprocess.run([sys.executable, "-c", TOUCHING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def a_runner(tmp_path: Path, rows: dict[str, Any], **more: Any) -> Any:
    checks, runner = importlib.import_module("checks"), importlib.import_module("runner")
    importlib.import_module("torch")  # once, and not in each check's seconds
    settings = checks.Settings("cpu", True, tmp_path)
    usual = {"settings": settings, "jobs": 2, "report": lambda check, row: rows.__setitem__(check.name, row)}
    return runner.Runner(**{**usual, **more})


def a_check(name: str, function: Any, seconds: float = 30.0, **more: Any) -> Any:
    return importlib.import_module("checks").Check(name, seconds, function, **more)


def test_a_check_that_fails_dies_or_hangs_ends_no_other(tmp_path: Path) -> None:
    wrong = importlib.import_module("checks").Wrong

    def fails(settings: Any) -> dict[str, Any]:
        raise wrong("two is not three", two=2)

    def dies(settings: Any) -> dict[str, Any]:
        settings.note({"so far": 1})
        os.kill(os.getpid(), 9)
        return {}

    def hangs(settings: Any) -> dict[str, Any]:
        settings.note({"so far": 2})
        time.sleep(60)
        return {}

    def lacks(settings: Any) -> dict[str, Any]:
        importlib.import_module("no_such_library")
        return {}

    def moved(settings: Any) -> dict[str, Any]:
        importlib.import_module("tests.laws.no_such_module")
        return {}

    rows: dict[str, Any] = {}
    found = [
        a_check("fails", fails),
        a_check("dies", dies),
        a_check("hangs", hangs, seconds=3.0),
        a_check("lacks", lacks),
        a_check("moved", moved),
        a_check("raises", lambda settings: 1 / 0),
        a_check("passes", lambda settings: {"three": float("nan")}),
    ]
    a_runner(tmp_path, rows).run(found, time.monotonic() + 60)
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {
        "fails": "failed",
        "dies": "died",
        "hangs": "over time",
        "lacks": "skipped",
        "moved": "error",
        "raises": "error",
        "passes": "passed",
    }
    assert rows["fails"]["figures"] == {"two": 2} and "two is not three" in rows["fails"]["reason"]
    assert rows["dies"]["figures"] == {"so far": 1} and rows["hangs"]["figures"] == {"so far": 2}
    assert "time.sleep" in rows["hangs"]["reason"] or "in hangs" in rows["hangs"]["reason"]
    assert "ZeroDivisionError" in rows["raises"]["reason"]
    assert "no_such_library" in rows["lacks"]["reason"]
    assert rows["passes"]["figures"] == {"three": "nan"}


@pytest.mark.parametrize("toy", [True, False])
def test_a_check_waits_for_what_it_needs_and_for_one_that_is_alone_unless_it_is_tiny(
    toy: bool, tmp_path: Path
) -> None:
    """The first one leaves late what the last one needs; the second one is to be alone, which in tiny nothing is."""
    began = time.monotonic()

    def leaves(settings: Any) -> dict[str, Any]:
        begins = time.monotonic() - began
        time.sleep(0.5)
        (settings.shared / "left").touch()
        return {"from": begins, "until": time.monotonic() - began}

    def other(settings: Any) -> dict[str, Any]:
        return {"from": time.monotonic() - began, "left": (settings.shared / "left").exists()}

    given = [
        a_check("leaves", leaves, leaves="left"),
        a_check("needs", other, needs="left"),
        a_check("alone", other, alone=True),
    ]
    rows: dict[str, Any] = {}
    settings = importlib.import_module("checks").Settings("cpu", toy, tmp_path)
    a_runner(tmp_path, rows, settings=settings).run(given, time.monotonic() + 60)
    found = {name: row["figures"] for name, row in rows.items()}
    assert found["needs"]["left"] and found["alone"]["left"] is not toy
    assert rows["leaves"]["host_seconds"] < 0.5, "it slept"


def test_checks_that_the_time_does_not_reach_are_said_and_are_not_green(tmp_path: Path) -> None:
    rows: dict[str, Any] = {}
    a_runner(tmp_path, rows).run([a_check("late", lambda settings: {})], time.monotonic() + 1)
    assert rows["late"]["status"] == "not run"
    assert not importlib.import_module("results").summary(rows)["green"]


def test_what_passed_in_an_earlier_call_is_taken_over_and_what_failed_is_not(tmp_path: Path) -> None:
    results = importlib.import_module("results")
    statuses = {"one": "passed", "two": "failed", "three": "skipped", "four": "cut off", "five": "passed"}
    rows = {name: {"status": status} for name, status in statuses.items()}
    write = (tmp_path / "correct.json").write_text
    write(json.dumps({"toy": False, "checks": rows}))
    found = results.earlier([tmp_path], ("correct", "speed"), toy=False)
    assert found["correct"].keys() == {"one", "five"} and found["speed"] == {}
    assert results.earlier([tmp_path], ("correct",), toy=True) == {"correct": {}}
    # what leaves a file for others is done only where the file is there, and what is not asked for again stays
    leaving = a_check("one", lambda settings: {}, command="correct", leaves="left")
    taken = results.Results([tmp_path / "out"], {}, time.monotonic())
    taken.take_over([leaving], found, tmp_path)
    assert taken.row(leaving) is None and taken.commands["correct"]["checks"].keys() == {"five"}
    (tmp_path / "left").touch()
    taken.take_over([leaving], found, tmp_path)
    assert taken.row(leaving)["earlier"]


def test_a_call_that_is_killed_has_left_what_was_done_and_what_ran(tmp_path: Path) -> None:
    """Kill the process that runs checks, as a machine that is taken away does, while one check runs and has said its first figures."""
    results, runner = importlib.import_module("results"), importlib.import_module("runner")
    runner.NOTED = 0.1

    def runs_on(settings: Any) -> dict[str, Any]:
        settings.note({"so far": 3})
        time.sleep(60)
        return {}

    done = a_check("done", lambda settings: {"one": 1}, command="correct")
    long = a_check("long", runs_on, command="correct")
    rest = a_check("rest", lambda settings: {}, command="correct", alone=True)
    head = {"date": "", "commit": "abc", "diff": "", "toy": True}
    written = results.Results([tmp_path / "out"], head, time.monotonic())
    pid = os.fork()
    if pid == 0:
        try:
            written.take_over([done, long, rest], {}, tmp_path)
            whole = importlib.import_module("checks").Settings("cpu", False, tmp_path)  # where alone is alone
            one = a_runner(tmp_path, {}, report=written.put, note=written.put, settings=whole)
            one.run([done, long, rest], time.monotonic() + 60)
        finally:
            os._exit(0)
    path = tmp_path / "out" / "correct.json"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (  # the two run side by side, and either may be first
        path.exists() and all(words in path.read_text() for words in ("so far", '"passed"'))
    ):
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    left = json.loads(path.read_text())
    assert left["checks"]["done"]["status"] == "passed" and left["checks"]["done"]["commit"] == "abc"
    assert left["checks"]["long"]["status"] == "cut off" and left["checks"]["long"]["figures"] == {
        "so far": 3
    }
    assert "rest" not in left["checks"] and not left["summary"]["green"]


def test_all_has_every_check_once_and_begins_with_what_is_right() -> None:
    checks, stages = importlib.import_module("checks"), importlib.import_module("stages")
    planned = [(stage, [each.name for each in own]) for stage, own in stages.all_stages()]
    names = [name for _, own in planned for name in own]
    every = {each.name for command in checks.COMMANDS for each in checks.checks_of(command)}
    assert len(names) == len({*names}) and {*names} == every
    assert names[0] == "device" and all(own and stage.seconds < stage.most_seconds for stage, own in planned)
    first = (
        "laws in bf16",
        "predicted: gpt2: bf16",
        "planned and trained: gpt2 in 4 GiB",
        "8B under a budget of 4 GB",
    )
    assert sorted(first, key=names.index) == [*first]  # right, then predicted, then budgets, then claims
    assert names.index("calibration") < names.index("predictions") < names.index(first[1])


def test_all_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    """End a call after some checks, and give the next call its results: it runs the others, and writes a JSON a command."""
    some = ["a row that is not", "fp32 is IEEE", "laws in fp16", "updates of an MLP"]
    keep = ["--keep", str(tmp_path / "kept")]
    status, found = run(tmp_path, "all", "--only", *some[:2], *keep, to="correct")
    assert (
        status == 0
        and found["checks"]["fp32 is IEEE in products, convolutions and recurrences"]["status"] == "passed"
    )
    first = found["checks"]["a row that is not a number changes nothing"]["seconds"]
    status, found = run(
        tmp_path, "all", "--only", *some, *keep, "--resume", str(tmp_path / "out"), to="correct"
    )
    assert status == 0 and found["summary"]["passed"] == 4
    again = found["checks"]["a row that is not a number changes nothing"]
    assert again["earlier"] and again["seconds"] == first and "earlier" not in found["checks"]["laws in fp16"]
    left = {
        name: json.loads((tmp_path / "out" / f"{name}.json").read_text())["checks"]
        for name in ("planner", "speed")
    }
    assert left["planner"]["calibration"]["earlier"] and left["planner"]["predictions"]["earlier"]
    assert left["speed"]["updates of an MLP per second"]["status"] == "passed"


def test_a_second_call_takes_up_what_the_first_one_left(tmp_path: Path) -> None:
    rows = {
        "fp32 is IEEE in products, convolutions and recurrences": {"status": "passed", "seconds": 12345.0},
        "a row that is not a number changes nothing": {"status": "failed"},
    }
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "correct.json").write_text(json.dumps({"toy": True, "checks": rows}))
    again = ["--resume", str(tmp_path / "out"), "--only", *rows]
    status, found = run(tmp_path, "correct", "--fresh", *again)
    first, second = (found["checks"][name] for name in rows)
    assert status == 0 and first["earlier"] and first["seconds"] == 12345.0
    assert second["status"] == "passed" and "earlier" not in second
    assert found["checks"]["device"]["status"] == "passed"


def test_a_result_names_no_single_card(tmp_path: Path) -> None:
    machine = importlib.import_module("machine")
    text = """\
GPU 00000000:1B:00.0
    Product Name                  : NVIDIA H200
    Serial Number                 : 1654922006536
    GPU UUID                      : GPU-5f2c1c7e-3a52-5d6f-9b7e-0a1b2c3d4e5f
    Board ID                      : 0x1b00
    Clocks
        SM                        : 345 MHz
    see GPU-5f2c1c7e-3a52-5d6f-9b7e-0a1b2c3d4e5f"""
    shown = machine.without_identifiers(text)
    assert "NVIDIA H200" in shown and "345 MHz" in shown
    for secret in ("1654922006536", "5f2c1c7e", "0x1b00", "1B:00"):
        assert secret not in shown


MEASURED = {
    "correct": {
        "toy": False,
        "date": "2026-12-01",
        "checks": {
            "device": {"status": "passed", "figures": {"name": "NVIDIA H200"}},
            "laws in fp32": {"status": "passed", "figures": {}},
            "laws in bf16": {
                "status": "failed",
                "reason": "bf16: the laws do not hold for sam",
                "figures": {},
            },
        },
    },
    "speed": {
        "toy": False,
        "checks": {
            "GPT-2 124M in bf16 beside others": {
                "status": "passed",
                "figures": {
                    "rows": 2,
                    "tokens": 50,
                    "rivals": {
                        "snugfit step": {
                            "tokens_per_second": 1234.0,
                            "seconds_per_update": {
                                "median": 0.1,
                                "least": 0.05,
                                "most": 0.2,
                                "repeats": [0.1, 0.05, 0.2],
                            },
                            "peak_allocated_bytes": 3 * 2**30,
                        },
                        "lightning": {"error": "it fell over"},
                    },
                },
            }
        },
    },
    "planner": {
        "toy": False,
        "checks": {
            "predicted: one": {"status": "passed", "figures": {"errors": {"allocated": -0.01}}},
            "predicted: two": {"status": "failed", "figures": {"errors": {"allocated": 0.07}}},
        },
    },
    "predicted": {
        "device": "h200",
        "runs": {"8B QLoRA": {"tokens_per_second": 777.0, "peak_allocated_bytes": 2**30}},
    },
}


def results_in(folder: Path, **results: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result))
    return folder


def test_what_was_measured_takes_the_place_of_what_was_predicted(tmp_path: Path) -> None:
    tables = importlib.import_module("tables")
    before = tables.load(results_in(tmp_path / "before", predicted=MEASURED["predicted"]))
    assert "| 8B QLoRA | 777 | 1.0 GiB | predicted |" in tables.runs(before)
    assert "Not measured yet" in tables.rivals(before) and "Not measured yet" in tables.planner(before)
    after = tables.load(results_in(tmp_path / "after", **MEASURED))
    assert "| GPT-2 124M in bf16 | 1,234 | 3.0 GiB | measured |" in tables.runs(after)
    assert "| 8B QLoRA | 777 | 1.0 GiB | predicted |" in tables.runs(after)
    assert "| snugfit step | 1,234 | 500 to 2,000 | 3 | 3.0 GiB | measured |" in tables.rivals(after)
    assert "| lightning | does not run |" in tables.rivals(after)
    assert "| bytes allocated | 2% | 1 of 2 |" in tables.planner(after) and "7.0% (two)" in tables.planner(
        after
    )
    proven = tables.TABLES["proven"](after)
    assert "| laws in fp32 | NVIDIA H200, 2026-12-01 |" in proven
    assert "| laws in bf16 | failed: bf16: the laws do not hold for sam |" in proven
    assert "| laws in fp16 | not yet |" in proven


def test_a_row_says_its_own_card_and_day_and_one_that_was_cut_off_what_it_had_measured() -> None:
    """Results of several calls may be those of several cards and days."""
    tables, results = importlib.import_module("tables"), copy.deepcopy(MEASURED)
    run = results["speed"]["checks"]["GPT-2 124M in bf16 beside others"]
    run |= {"status": "cut off", "device": "NVIDIA H100"}
    results["correct"]["checks"]["laws in fp32"] |= {"device": "NVIDIA H100", "date": "2026-12-03"}
    assert "| 1,234 | 3.0 GiB | measured on NVIDIA H100; cut off |" in tables.runs(results)
    assert "| laws in fp32 | NVIDIA H100, 2026-12-03 |" in tables.TABLES["proven"](results)


def test_a_check_of_checkpoints_that_failed_before_it_had_timed_anything_leaves_the_tables_as_they_are() -> (
    None
):
    tables = importlib.import_module("tables")
    row = {"status": "failed", "reason": "sync: no update was timed", "figures": {"marks": 3}}
    failed = {**MEASURED, "speed": {"toy": False, "checks": {tables.SAVES[1]: row}}}
    assert tables.others(failed) == tables.NOTHING


UNTOLD = {"device", "predictions"}
"""Checks whose figures are for the others: the card's name, and seconds of planning."""


def test_what_each_check_measures_is_in_a_table() -> None:
    """Take one check after the other out of the results in tiny, which have the form of all: a table changes."""
    tables = importlib.import_module("tables")
    results: dict[str, Any] = {
        name: json.loads((tables.RESULTS / "rehearsal" / f"{name}.json").read_text()) for name in PLANTS
    }
    # what a CPU has none of
    results["speed"]["checks"]["idle time of an update"]["figures"]["gpt2: snugfit"] = 0.25
    context = results["planner"]["checks"]["context and workspaces are as large as they are taken to be"]
    context["figures"] = {"taken": 2**29, "context": 2**29, "with attention": 2**29}

    def made(of: dict[str, Any]) -> list[str]:
        return [make(of) for make in tables.TABLES.values()]

    all_tables = made(results)
    published = [
        line for line in tables.others(results).splitlines() if "by Unsloth" in line or "by Soup" in line
    ]
    assert len(published) >= 6 and all(
        line.endswith("| published, not measured here |") for line in published
    )
    for command, result in results.items():
        for name in result["checks"].keys() - UNTOLD:
            rows = {each: row for each, row in result["checks"].items() if each != name}
            without = {**results, command: {**result, "checks": rows}}
            assert made(without) != all_tables, f"{command}: no table has a figure of {name!r}"


def test_results_in_tiny_measure_nothing(tmp_path: Path) -> None:
    tables = importlib.import_module("tables")
    toy = {name: {**result, "toy": True} for name, result in MEASURED.items() if name != "predicted"}
    assert tables.load(results_in(tmp_path, **toy)) == {}


def test_a_page_keeps_what_is_around_its_tables_and_its_tables_are_up_to_date() -> None:
    tables = importlib.import_module("tables")
    text = "one\n<!-- gpu: planner -->\nold\n<!-- gpu end -->\ntwo\n"
    made = "one\n<!-- gpu: planner -->\nNot measured yet.\n<!-- gpu end -->\ntwo\n"
    assert tables.written(text, {}) == made
    results = tables.load()
    for page in tables.PAGES:
        found = page.read_text()
        assert tables.written(found, results) == found, f"{page}: run python benchmarks/gpu/tables.py"


def test_the_names_of_the_pages_are_those_of_the_checks() -> None:
    checks, tables = importlib.import_module("checks"), importlib.import_module("tables")
    assert tables.correct_checks() == [each.name for each in checks.checks_of("correct")][1:]
    names = {each.name for command in checks.COMMANDS for each in checks.checks_of(command)}
    source = (GPU / "tables.py").read_text()
    places = tables.re.findall(r'\("(speed|claims|planner)", "([^"]+)"\)', source)
    assert len(places) >= 12
    for command, check in places:
        assert check in names, f"{command}: there is no check {check!r}"
