"""A call of one of the four commands, or of all by what they prove in a second: checks, one after the other or side by side, and a JSON after each."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BEGAN = time.time()
ALL = "all"
LIMIT, LIMITS = 345.0, {ALL: 415.0}
"""Seconds of a call, with what it takes to import."""

sys.path[:0] = [str(HERE)]
if WHEELS := os.environ.get("SNUGFIT_WHEELS"):
    sys.path.append(str(Path(WHEELS, "all")))  # what the machine has itself comes first

import machine  # noqa: E402
from checks import COMMANDS, DEVICE, GREEN, NOT_RUN, Check, Settings, checks_of  # noqa: E402
from results import Results, earlier  # noqa: E402
from runner import Runner, be_checks_process, in_process  # noqa: E402
from stages import Planned, all_stages, in_tiny  # noqa: E402

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
    "snugfit.planner.prediction.plan_needs",
    "snugfit.run.from_recipe",
)
"""What checks would import, imported once; none of it may touch a GPU."""
ON_A_CPU = ("bitsandbytes",)
"""The same, of what asks a GPU what it is: a second for each of eight checks."""


def main() -> int:
    given = arguments()
    own_packages()
    if given.toy:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["OMP_NUM_THREADS"] = "1"
    if given.command in ("correct", ALL):  # whose checks run side by side
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    if given.host_gib is not None:
        os.environ["SNUGFIT_HOST_GIB"] = str(given.host_gib)
    if given.one is not None:
        return run_one(given)
    began = time.monotonic() - max(0.0, BEGAN - float(os.environ.get("SNUGFIT_BEGAN") or BEGAN))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the runner ends its checks
    stages = chosen_stages(given)
    with folder_of_all(given) as shared:
        results = begin(given, [check for _, checks in stages for check in checks], shared, began)
        import_all(given.device == "cuda")
        results.head["imports_seconds"] = round(time.monotonic() - began, 1)
        run_stages(given, stages, results, shared)
        results.head["clocks"]["after"] = machine.clocks()
        end = results.finish()
    print(json.dumps({"results": [str(each) for each in results.folders], **end}))
    return 0 if end["green"] else 1


def begin(given: argparse.Namespace, checks: Sequence[Check], shared: Path, began: float) -> Results:
    """Return the results, with what passed in earlier calls, and write them."""
    folders = [given.out, *([] if given.keep is None else [given.keep])]
    commands = list(dict.fromkeys(each.command for each in checks))
    passed = earlier(
        [*(given.resume or ()), *folders[1:]], commands, given.toy
    )  # before they are written anew
    head = {
        "toy": given.toy,
        "plant": given.plant,
        "date": time.strftime("%Y-%m-%d"),
        "commit": given.commit,
        "diff": given.diff,
        "machine": machine.host(),
        "nvidia_smi": machine.nvidia_smi(),
        "clocks": {"before": machine.clocks()},
    }
    results = Results(folders, head, began)
    results.take_over(checks, passed, shared)
    return results


def run_stages(given: argparse.Namespace, stages: Sequence[Planned], results: Results, shared: Path) -> None:
    """Run each stage within its seconds and those of the call; what a stage gave up comes at the end, if time is left."""

    def report(check: Check, row: dict[str, Any]) -> None:
        results.put(check, row)
        reason = (row.get("reason") or "").strip().splitlines()
        line = reason[-1 if reason[0].startswith("Traceback") else 0] if reason else ""
        suffix = f": {line[:160]}" if line else ""
        at = time.monotonic() - results.began
        print(
            f"{at:5.0f} s  {row['status']:9} {row.get('seconds', 0.0):6.1f} s  {check.name}{suffix}",
            flush=True,
        )

    def left(checks: Sequence[Check]) -> list[Check]:
        rows = [(each, results.row(each)) for each in checks]
        return [each for each, row in rows if row is None or row["status"] == NOT_RUN]

    settings = Settings(given.device, given.toy, shared, given.plant)
    patience = 10.0 if given.toy else 1.0
    runner = Runner(settings, jobs(given), report, results.put, fork=not given.fresh, patience=patience)
    until = results.began + given.limit
    for stage, checks in stages:
        if stage is not None and left(checks):
            print(f"-- {stage.name}: {stage.seconds} s, at most {stage.most_seconds}", flush=True)
        most = math.inf if stage is None else stage.most_seconds * patience
        runner.run(left(checks), min(until, time.monotonic() + most))
        (device, *_) = checks or [None]
        if device is None or device.name != DEVICE or not settings.cuda:
            continue
        if results.row(device)["status"] not in GREEN:
            print("a forked process cannot use the GPU: each check is started anew", flush=True)
            runner.fork = False
            runner.run([device], until)
        if results.row(device)["status"] not in GREEN:
            print("the device does not compute: nothing else is begun", flush=True)
            return
    runner.run(left([check for _, checks in stages for check in checks]), until)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description="Snugfit on a GPU.")
    parser.add_argument("command", choices=(*COMMANDS, ALL))
    parser.add_argument("--toy", action="store_true", help="tiny sizes on a CPU, on any machine")
    parser.add_argument("--out", type=Path, default=default_out(), help="folder of the result")
    parser.add_argument(
        "--resume", type=Path, nargs="+", help="folders of earlier results, whose passed checks stay"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for what the next call on this machine goes on from: results, calibration",
    )
    parser.add_argument(
        "--host-gib", type=float, help="host memory, where the system says less than it may grow to"
    )
    parser.add_argument("--only", nargs="+", help="checks whose name holds one of these texts")
    parser.add_argument("--skip", nargs="+", default=[], help="no checks whose name holds one of these texts")
    parser.add_argument("--plant", help="put a fault into Snugfit that a check must find; with --toy")
    parser.add_argument("--commit", default=os.environ.get("SNUGFIT_COMMIT", "unknown"))
    parser.add_argument(
        "--diff", default=os.environ.get("SNUGFIT_DIFF", ""), help="hash of what is not committed"
    )
    parser.add_argument("--limit", type=float, help="seconds of the whole call; 345, of all 415")
    parser.add_argument("--jobs", type=int, help="checks at a time")
    parser.add_argument(
        "--fresh", action="store_true", help="start Python anew for each check, instead of a fork"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.device = given.device or ("cpu" if given.toy else "cuda")
    if given.plant and not given.toy:
        parser.error("--plant: faults are planted with --toy only.")
    # in tiny, how busy the machine is decides how long it takes
    given.limit = given.limit or (1800.0 if given.toy else LIMITS.get(given.command, LIMIT))
    if given.list:
        own_packages()
        for stage, checks in chosen_stages(given):
            if stage is not None:
                print(f"-- {stage.name} ({stage.seconds} s, at most {stage.most_seconds}; {stage.estimate})")
            for each in checks:
                print(
                    f"{each.name}  (at most {each.seconds:.0f} s)",
                    *(f"\n    plant: {name}" for name in each.plants),
                )
        sys.exit(0)
    return given


def default_out() -> Path:
    return Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results" / "gpu")


def chosen_stages(given: argparse.Namespace) -> list[Planned]:
    """Return the checks that are asked for in their stages, and always those that others need.

    Raises:
        SystemExit: no check has such a name, or none finds the fault.
    """
    if given.command == ALL:
        planned: list[Planned] = [(stage, list(checks)) for stage, checks in all_stages()]
    else:
        first, *others = checks_of(given.command)
        planned = [(None, [first]), (None, others)]
    checks = [each for _, own in planned for each in own]
    if given.plant and not any(given.plant in each.plants for each in checks):
        known = sorted({name for each in checks for name in each.plants})
        sys.exit(f"--plant: got {given.plant!r}, expected one of {', '.join(known)}.")
    for text in given.only or []:
        if not any(text in each.name for each in checks):
            sys.exit(f"--only: got {text!r}, which is in no check's name. Ask --list for them.")

    def asked(check: Check) -> bool:
        if check.only_whole if given.toy else check.only_toy:
            return False
        wanted = given.only is None or any(text in check.name for text in given.only)
        skipped = any(text in check.name for text in given.skip)
        return check.always or ((wanted or bool(check.leaves)) and not skipped)

    planned = [(stage, [each for each in own if asked(each)]) for stage, own in planned]
    return in_tiny(planned) if given.toy else planned


@contextlib.contextmanager
def folder_of_all(given: argparse.Namespace) -> Iterator[Path]:
    """Give the folder that checks leave things in for others: that of `--keep`, or one that is gone afterwards."""
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        yield given.keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="snugfit-gpu-", ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def jobs(given: argparse.Namespace) -> int:
    """Return checks at a time: processes on a GPU share it, and need a core each."""
    return given.jobs or max(2, min(6, (os.cpu_count() or 1) // 2))


def import_all(cuda: bool) -> None:
    """Import what checks would import, without asking whether a GPU is there: to ask it may be to use it, and then nothing can be forked."""
    import torch

    def is_there() -> bool:
        return True

    answer = mock.patch.object(torch.cuda, "is_available", is_there)
    with answer if cuda else contextlib.nullcontext():
        for name in (*IMPORTED, *(() if cuda else ON_A_CPU)):
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
    import_all(cuda=False)  # it may ask
    (check,) = [each for each in checks_of(given.command) if each.name == given.one]
    settings = Settings(given.device, given.toy, given.scratch, given.plant)
    in_process(check, settings, given.scratch, given.seconds, given.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
