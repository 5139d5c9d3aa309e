"""A runner of one of the four commands: its checks, one after the other or side by side, and a JSON that is written after each."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BEGAN = time.time()
LIMIT = 345.0
"""Seconds of a command, with what it takes to import."""

sys.path[:0] = [str(HERE)]
if WHEELS := os.environ.get("SNUGFIT_WHEELS"):
    sys.path.append(str(Path(WHEELS, "all")))  # what the machine has itself comes first

import machine  # noqa: E402
from checks import COMMANDS, GREEN, Settings, checks_of, write_json  # noqa: E402
from runner import Runner, be_checks_process, earlier, in_process, summary  # noqa: E402

IMPORTED = (
    "numpy",
    "safetensors.torch",
    "torch",
    "torch.distributed",
    "transformers.models.llama.modeling_llama",
    "transformers.models.gpt2.modeling_gpt2",
    "snugfit.step.build",
    "snugfit.step.step",
    "snugfit.techniques",
    "snugfit.planner.prediction.predict",
)
"""What checks would import, imported once; none of it may touch a GPU."""


def main() -> int:
    given = arguments()
    own_packages()
    if given.toy:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["OMP_NUM_THREADS"] = "1"
    if given.command == "correct":  # whose checks run side by side
        os.environ.setdefault("OMP_NUM_THREADS", "2")
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    if given.one is not None:
        return run_one(given)
    began = time.monotonic() - max(0.0, BEGAN - float(os.environ.get("SNUGFIT_BEGAN") or BEGAN))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the runner ends its checks
    path = given.out / f"{given.command}.json"
    checks = chosen_checks(given)
    passed = earlier(given.resume, given.command)  # before the file of that name is written anew
    passed_names = [each.name for each in checks if each.name in passed and not each.always]
    result: dict[str, Any] = {
        "command": given.command,
        "toy": given.toy,
        "plant": given.plant,
        "date": time.strftime("%Y-%m-%d"),
        "commit": given.commit,
        "diff": given.diff,
        "machine": machine.host(),
        "nvidia_smi": machine.nvidia_smi(),
        "clocks": {"before": machine.clocks()},
        "checks": {name: {**passed[name], "earlier": True} for name in passed_names},
    }
    write_json(path, result)
    import_all()
    result["imports_seconds"] = round(time.monotonic() - began, 1)
    rows = result["checks"]
    with tempfile.TemporaryDirectory(prefix="snugfit-gpu-", ignore_cleanup_errors=True) as scratch:
        settings = Settings(given.device, given.toy, Path(scratch), given.plant)

        def report(name: str, row: dict[str, Any]) -> None:
            rows[name] = {**row, "commit": given.commit, "diff": given.diff}
            result["wall_seconds"] = round(time.monotonic() - began, 1)
            result["summary"] = summary(rows)
            write_json(path, result)
            reason = (row.get("reason") or "").strip().splitlines()
            suffix = f": {reason[0][:160]}" if reason else ""
            print(f"{row['status']:9} {row.get('seconds', 0.0):7.1f} s  {name}{suffix}", flush=True)

        runner = Runner(
            given.command,
            settings,
            began + given.limit,
            jobs(given),
            report,
            fork=not given.fresh,
            patience=10.0 if given.toy else 1.0,
        )
        left = [each for each in checks if each.name not in rows]
        first = [each for each in left if each.name == FIRST]
        runner.run(first)
        if first and settings.cuda and rows[FIRST]["status"] not in GREEN:
            print("a forked process cannot use the GPU: each check is started anew", flush=True)
            runner = replace(runner, fork=False, _running=[])
            runner.run(first)
        runner.run([each for each in left if each.name != FIRST])
    result["clocks"]["after"] = machine.clocks()
    result["wall_seconds"] = round(time.monotonic() - began, 1)
    result["summary"] = summary(rows)
    write_json(path, result)
    print(json.dumps({"result": str(path), "wall_seconds": result["wall_seconds"], **result["summary"]}))
    return 0 if result["summary"]["green"] else 1


FIRST = "device"
"""The check that says whether the device computes at all."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description="Snugfit on a GPU.")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--toy", action="store_true", help="tiny sizes on a CPU, on any machine")
    parser.add_argument("--out", type=Path, default=default_out(), help="folder of the result")
    parser.add_argument("--resume", type=Path, help="folder of an earlier result, whose passed checks stay")
    parser.add_argument("--only", nargs="+", help="checks whose name holds one of these texts")
    parser.add_argument("--skip", nargs="+", default=[], help="no checks whose name holds one of these texts")
    parser.add_argument("--plant", help="put a fault into Snugfit that a check must find; with --toy")
    parser.add_argument("--commit", default=os.environ.get("SNUGFIT_COMMIT", "unknown"))
    parser.add_argument(
        "--diff", default=os.environ.get("SNUGFIT_DIFF", ""), help="hash of what is not committed"
    )
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of the whole command")
    parser.add_argument("--jobs", type=int, help="checks at a time")
    parser.add_argument(
        "--fresh", action="store_true", help="start Python anew for each check, instead of a fork"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.device = given.device or ("cpu" if given.toy else "cuda")
    if given.plant and not given.toy:
        parser.error("--plant: faults are planted with --toy only.")
    if given.toy:
        given.limit = max(given.limit, 900.0)  # what limits it is how busy the machine is
    if given.list:
        own_packages()
        for each in checks_of(given.command):
            print(f"{each.name}  ({each.seconds:.0f} s)", *(f"\n    plant: {name}" for name in each.plants))
        sys.exit(0)
    return given


def default_out() -> Path:
    return Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results" / "gpu")


def chosen_checks(given: argparse.Namespace) -> list[Any]:
    """Return the checks that are asked for, and always the first one.

    Raises:
        SystemExit: no check has such a name, or none finds the fault.
    """
    checks = [
        each for each in checks_of(given.command) if not (each.only_whole if given.toy else each.only_toy)
    ]
    if given.plant and not any(given.plant in each.plants for each in checks):
        known = sorted({name for each in checks for name in each.plants})
        sys.exit(f"--plant: got {given.plant!r}, expected one of {', '.join(known)}.")
    for text in given.only or []:
        if not any(text in each.name for each in checks):
            sys.exit(f"--only: got {text!r}, which is in no check's name. Ask --list for them.")
    return [
        each
        for each in checks
        if each.name == FIRST
        or each.always
        or (
            (given.only is None or any(text in each.name for text in given.only))
            and not any(text in each.name for text in given.skip)
        )
    ]


def jobs(given: argparse.Namespace) -> int:
    """Return checks at a time: processes on a GPU share it, and need a core each."""
    return given.jobs or max(2, min(6, (os.cpu_count() or 1) // 2))


def import_all() -> None:
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # the checks that need it say so
            importlib.import_module(name)
    from snugfit.techniques import discover

    discover()
    importlib.import_module("tests.laws.problems")


def own_packages() -> None:
    """Let `tests` and `benchmarks` be those of this tree, whatever other packages have put beside themselves."""
    for name in ("tests", "benchmarks"):
        module = ModuleType(name)
        module.__path__ = [str(ROOT / name)]
        sys.modules[name] = module


def run_one(given: argparse.Namespace) -> int:
    """Run one check in this process, for a runner that cannot fork."""
    be_checks_process(given.scratch)
    import_all()
    (check,) = [each for each in checks_of(given.command) if each.name == given.one]
    settings = Settings(given.device, given.toy, given.scratch, given.plant)
    in_process(check, settings, given.scratch, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
