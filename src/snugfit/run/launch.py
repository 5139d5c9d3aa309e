"""A run on several devices of this machine: a process for each, started and watched by torchrun's agent."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from snugfit import errors
from snugfit.errors import OutOfMemory, RanksLost, TrainingFailed, UserError
from snugfit.recipe.jobs import numerics_of, plan_of
from snugfit.recipe.plan_choices import with_precision_here
from snugfit.results.run_folder import RECIPE, RunFolder
from snugfit.run.call_options import RunOptions
from snugfit.run.events import has_begun
from snugfit.run.identity.identity import BATCH_NORM
from snugfit.run.plans import recipe_plan
from snugfit.run.training.stop_requests import say_received, stop_signals
from snugfit.strategies.process_group import check_devices
from snugfit.system.processes import ENDING, RECORDED, Failure, threads_of_each
from snugfit.system.redaction import redact

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from snugfit.recipe import Recipe

_SHUTDOWN_SECONDS = 600
"""That processes which are asked to stop get to save and end in, before they are killed."""

_RESUMABLE = 75
"""The exit code of a run that can go on."""

_ENDING_FILE = "ending.json"
_LAST_LINES = 20
"""Of what a process wrote that ended without a reason."""

_LAG_SECONDS = 2.0
"""A process that says that others have ended says so within this time, and the agent sees within it that one has."""


def train_on_devices(recipe: Recipe, options: RunOptions, max_restarts: int, shown: Sequence[str]) -> int:
    """Plan a recipe, and train it on its devices; returns the exit code.

    Args:
        max_restarts: times to go on from the newest checkpoint when a process died.
        shown: options of the command line about what is shown.
    Raises:
        UserError: the recipe cannot be used; no run's folder is left behind.
        TrainingFailed: a process failed.
    """
    plan = plan_of(recipe)
    check_devices(plan.device, recipe.plan.devices)
    RunFolder.check_output(Path(recipe.output))
    recipe, answer, notes = (recipe, None, []) if options.is_smoke else recipe_plan.planned(recipe, options)
    recipe, precision_notes = with_precision_here(recipe)
    for note in [*notes, *precision_notes]:
        print(f"warning: {note}", file=sys.stderr)
    folder = RunFolder.create(Path(recipe.output), recipe.name)
    recipe_plan.write_beginning(folder, recipe, replace(plan, numerics=numerics_of(recipe)), answer)
    command = ["train", str(folder.path / RECIPE), "--no-plan", "--into", str(folder.path)]
    command += _consent(recipe)
    if options.fast_dev_run:
        command.append("--fast-dev-run")
    if options.overfit_batches is not None:
        command += ["--overfit-batches", str(options.overfit_batches)]

    def launch(finer: int | None) -> int:
        changed = [] if finer is None else [f"plan.micro_batch={finer}", *_accepting(options, finer)]
        return _launch([*command, *changed, *_until(options), *shown], recipe, max_restarts, folder)

    try:
        return _until_it_fits(launch)
    except UserError:
        if not has_begun(folder):
            folder.discard()
        raise
    finally:
        if not folder.events.exists() or folder.events.stat().st_size == 0:
            folder.discard()


def resume_on_devices(
    run: Path, recipe: Recipe, options: RunOptions, max_restarts: int, shown: Sequence[str]
) -> int:
    """Go on with a run on as many devices as its recipe says now; returns the exit code.

    Raises:
        As `train_on_devices`.
    """
    folder, plan = RunFolder.open(run), recipe.plan
    check_devices(plan_of(recipe).device, plan.devices)
    command = [
        "resume",
        str(run),
        "--devices",
        str(plan.devices),
        "--strategy",
        plan.strategy,
        *_consent(recipe),
    ]

    def launch(finer: int | None) -> int:
        micro_batch = plan.micro_batch if finer is None else finer
        changed = ["--micro-batch", "null" if micro_batch is None else str(micro_batch)]
        changed += _accepting(options, finer)
        return _launch([*command, *changed, *_until(options), *shown], recipe, max_restarts, folder)

    return _until_it_fits(launch)


def _consent(recipe: Recipe) -> list[str]:
    """Return the option by which processes may run what this one may."""
    return ["--allow-code"] if recipe.code else []


def _until_it_fits(launch: Callable[[int | None], int]) -> int:
    """Launch processes, and whenever one of them has run out of memory, all again in finer micro-batches.

    Of the update that could not be made nothing is there, and updates since the newest checkpoint are made
    again.
    """
    finer: int | None = None
    while True:
        try:
            return launch(finer)
        except OutOfMemory as error:
            if error.finer is None:
                raise
            print(f"warning: {error} That is done now.", file=sys.stderr)
            finer = error.finer


def _accepting(options: RunOptions, finer: int | None) -> list[str]:
    """Return the changes that are known, as an option; batch norm of a window that had to be made finer is one."""
    names = [*options.accept_changes, *([] if finer is None else [BATCH_NORM])]
    return ["--accept-changes", ",".join(names)] if names else []


def _until(options: RunOptions) -> list[str]:
    """Return the time that is left to train in, as options."""
    limits = {"--stop-after": options.stop_after_seconds, "--time": options.time_seconds}
    spent = time.monotonic() - options.started
    return [
        part
        for name, seconds in limits.items()
        if seconds is not None
        for part in (name, f"{max(seconds - spent, 0.001):.3f}s")  # no time at all is refused
    ]


def _launch(arguments: Sequence[str], recipe: Recipe, max_restarts: int, folder: RunFolder) -> int:
    """Run a command of Snugfit in a process for each device; only the first one shows anything."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    devices = recipe.plan.devices
    with tempfile.TemporaryDirectory(prefix="snugfit-") as place, _surroundings(Path(place), recipe, folder):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=max_restarts,
            monitor_interval=0.2,
            logs_specs=DefaultLogsSpecs(log_dir=place, redirects=dict.fromkeys(range(1, devices), Std.ALL)),
            signals_to_handle="SIGQUIT",  # those of `_surroundings` would be handled once, and a second one end the processes
        )
        ending, failures, stopped = Path(place, _ENDING_FILE), {}, None
        try:
            elastic_launch(config, sys.executable)("-m", "snugfit", *arguments)
        except ChildFailedError as error:
            failures = error.failures
        except SignalException as received:
            stopped = received.sigval.name
        if ending.exists():
            ended = json.loads(ending.read_text(encoding="utf-8"))
            if ended["failure"] is not None:
                raise _error(ended["failure"], folder)
            return int(ended["code"])
        if stopped is not None:
            message = f"received {stopped}, and the processes ended before they had saved. {_way_on(folder)}"
            if not folder.has_checkpoints:
                raise TrainingFailed(message)
            print(f"error: {message}", file=sys.stderr)
            return _RESUMABLE
        raise _first_error(failures, folder, Path(place))


@contextlib.contextmanager
def _surroundings(place: Path, recipe: Recipe, folder: RunFolder) -> Iterator[None]:
    """Temporarily set the environment of processes, quieten the agent, and pass on the first signal to stop.

    The agent is quiet as its failures are told in other words. A Ctrl-C after the signal ends the processes
    and this one.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    interrupted = False

    def receive(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            if number != signal.SIGINT:
                return
            with contextlib.suppress(OSError):
                print(f"interrupted. {_way_on(folder)}", file=sys.stderr, flush=True)
            os._exit(_RESUMABLE if folder.has_checkpoints else 1)
        interrupted = True
        say_received(signal.Signals(number).name)
        raise SignalException("", signal.Signals(number))

    before, agent = dict(os.environ), logging.getLogger("torch.distributed.elastic")
    os.environ[ENDING] = str(place / _ENDING_FILE)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_each(recipe.plan.devices)))
    if recipe.track.uri and redact(recipe.track.uri) != recipe.track.uri:
        os.environ["MLFLOW_TRACKING_URI"] = (
            recipe.track.uri
        )  # the run's copy of the recipe is without secrets
    # else processes that are started anew find the addresses of those before them: https://github.com/pytorch/pytorch/issues/135712
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # by the environment, as older versions of torch have no such argument; those end processes after 30 seconds
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
    quiet = logging.NullHandler()
    agent.addHandler(quiet)  # its loggers have levels of their own
    propagated, agent.propagate = agent.propagate, False
    handlers = {number: signal.signal(number, receive) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        agent.propagate = propagated
        agent.removeHandler(quiet)
        os.environ.clear()
        os.environ.update(before)


def _first_error(
    failures: Mapping[int, ProcessFailure], folder: RunFolder, place: Path
) -> errors.SnugfitError:
    """Return the error that the others followed from.

    A process that says that others have ended follows from one of them, which may have had no time to say anything. What the agent has
    ended itself is no reason.
    """

    def order(rank: int) -> float:
        failure = failures[rank]
        recorded = failure.error_file_data.get(RECORDED)
        if recorded is None:
            return float("inf") if failure.exitcode == -signal.SIGTERM else failure.timestamp
        return float(recorded["time"]) + _LAG_SECONDS * float(recorded["lost"])

    rank = min(failures, key=order)
    failure = failures[rank]
    recorded = failure.error_file_data.get(RECORDED)
    if recorded is not None:
        return _error(recorded, folder)
    logs = sorted(place.glob(f"*/attempt_*/{rank}/stderr.log"))  # the first rank's is shown as it comes
    for line in logs[-1].read_text(errors="replace").splitlines()[-_LAST_LINES:] if logs else ():
        print(redact(line), file=sys.stderr)
    if failure.exitcode == -signal.SIGABRT:  # NCCL's watchdog raises nothing
        return RanksLost(
            f"rank {rank} (process {failure.pid}) was ended by SIGABRT, as NCCL's watchdog does where it has not heard of the other ranks "
            f"within plan.timeout, and the others were ended. {_way_on(folder)}"
        )
    how = (
        f"was killed by {failure.signal_name()}"
        if failure.exitcode < 0
        else f"ended with exit code {failure.exitcode}"
    )
    return TrainingFailed(
        f"rank {rank} (process {failure.pid}) {how}, and the others were ended. {_way_on(folder)}"
    )


def _error(failure: Failure, folder: RunFolder) -> errors.SnugfitError:
    """Return what a process has recorded, as an error of this one; the trace of what nobody expected is shown."""
    if failure["trace"]:
        print(failure["trace"], file=sys.stderr, end="")
        return TrainingFailed(
            f"rank {failure['rank']} failed, and the others were ended: {failure['kind']}: {failure['message']}. {_way_on(folder)}"
        )
    kind: Any = getattr(errors, failure["kind"])
    known = (
        failure["rank"] == 0 or failure["lost"]
    )  # the first speaks for all, and who lost others names itself
    message = failure["message"] if known else f"rank {failure['rank']}: {failure['message']}"
    error: errors.SnugfitError = (
        kind.from_text(message) if issubclass(kind, errors.UserError) else kind(message)
    )
    if isinstance(error, OutOfMemory):
        error.finer = failure["finer"]
    return error if not failure["lost"] else kind(f"{message} {_way_on(folder)}")


def _way_on(folder: RunFolder) -> str:
    if folder.has_checkpoints:
        return f"Go on from the newest checkpoint: snugfit resume {shlex.quote(str(folder.path))}"
    return "There is no checkpoint yet to go on from; checkpoint.every saves more often."
