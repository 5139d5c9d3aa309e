"""The time of an update by parts: the real step on the run's own windows, first with a clock alone, then under torch's profiler."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, schedule, tensorboard_trace_handler

from snugfit.core.batch import Batch
from snugfit.core.job import AUTO, Plan
from snugfit.core.random import preserved_randomness
from snugfit.data.loader import Loader, Windows
from snugfit.data.sizes import padding_share
from snugfit.errors import SettingError, SnugfitError
from snugfit.kit.phases import phase, watched
from snugfit.kit.serialize import pack
from snugfit.planner.devices.device import Device
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.trace.memory_breakdown import MemoryUse, memory_use
from snugfit.planner.trace.memory_snapshot import snapshot
from snugfit.planner.trace.real_run import record_update
from snugfit.run.checkpoint import checkpoint_files
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.find_micro_batch import find_micro_batch
from snugfit.step.micro_batch_sizes import cut
from snugfit.step.step import Step
from snugfit.system.messages import silence_profiler
from snugfit.tools.planner_figures import Predicted
from snugfit.tools.profile.labels import BETWEEN, Clock, both, in_trace, modules_in_trace
from snugfit.tools.profile.limits import Measured, Occasional, advise, culprits, limits, verdict
from snugfit.tools.profile.operators import Operator, Work, operators_of, work_of
from snugfit.tools.profile.result import TABLE, TENSORBOARD, TRACE, Detail, Profile
from snugfit.tools.setup import Setup

UPDATES = 5
_UNSEEN = 2
"""Updates before those that are seen: the first makes the optimizer's state, and of the profiler's one waits and one warms up."""

_FRAMES = 5
"""Of a stack in torch's table."""

_COLUMNS = {"device": "self_device_time_total", "host": "self_cpu_time_total"}
"""Of torch's table, by what it is sorted by."""

_ORDER = (
    "data",
    "techniques",
    "pass",
    "forward",
    "loss",
    "backward",
    "unscale",
    "adjust",
    "optimizer",
    BETWEEN,
)


def profile_setup(
    setup: Setup,
    folder: Path,
    *,
    updates: int = UPDATES,
    memory: bool = False,
    tensorboard: bool = False,
    detail: Detail = Detail(),  # noqa: B008 (frozen)
    tell: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Profile `updates` updates of a setup on its own windows, an evaluation of as many batches and a save where the run has them.

    The setup's model, the data's order and the random state are as before; files of `folder` have the trace and the table.

    Args:
        memory: whether the memory of an update is looked at too.
        tensorboard: whether the trace is also written as TensorBoard's plug-in reads it.
        detail: what is told of the operators, and their order.
        tell: is told what is being done.
    Raises:
        SettingError: `updates` is not positive, or there is no such order.
        UserError, TrainingFailed: the setup cannot be run.
    """
    if updates < 1:
        raise SettingError("updates", f"must be at least 1, found {updates}", "Give 1 or more.")
    detail = replace(detail, sort=detail.sorted_by(torch.device(setup.plan.device).type))
    job, windows = setup.job, _warm_up(setup.plan) + 2 * updates + _UNSEEN
    if setup.windows < windows:  # schedules end with the run
        job = job.for_updates(windows)
    with preserved_randomness(torch.device(setup.plan.device)):
        return _Profiling(replace(setup, job=job), folder, updates, detail, tell).run(
            memory, tensorboard, setup
        )


class _Profiling:
    """A profile in the making: a step, and the windows that it takes one after the other."""

    def __init__(
        self, setup: Setup, folder: Path, updates: int, detail: Detail, tell: Callable[[str], None]
    ) -> None:
        self.setup, self.folder, self.updates, self.detail, self.tell = setup, folder, updates, detail, tell
        self.step = setup.step()
        self.loader, self.validation = setup.loader(), setup.validation()
        if setup.plan.micro_batch == AUTO:
            self.tell("finding the micro-batch")
            self.step.micro_batch = find_micro_batch(self.step, self.loader.worst_window()[0]).micro_batch
        self.device = find_device(self.step.device.type)
        self.names = frozenset(self.step.seams.names)
        self.seen: list[tuple[int, tuple[int, ...]]] = []  # rows and lengths of the windows that are timed
        self.notes: list[str] = []

    def run(self, memory: bool, tensorboard: bool, asked: Setup) -> Profile:
        step, clock, profiled = self.step, Clock(self.step.device), Clock(self.step.device)
        with closing(self.loader.windows(0, self.setup.windows, one_by_one=True)) as windows:
            for _ in range(_warm_up(self.setup.plan)):
                window = self._update(windows)
            self.tell(f"timing {self.updates} updates")
            with watched(clock), clock.running():
                for _ in range(self.updates):
                    window = self._update(windows)
                    self.seen.append((window.rows, window.lengths or ()))
            evaluation = self._evaluation(Clock(step.device))
            self.tell(f"profiling {self.updates} updates")
            table, events = self._profiled(windows, profiled, memory, tensorboard)
        occasional = {**evaluation, "save": self._saving(profiled)}
        self.tell("counting")
        work = self._work(window)
        uses = self._memory() if memory else ()
        phases = self._phases(clock)
        slow = self._phases(profiled)
        scale = {name: phases.get(name, 0.0) / taken for name, taken in slow.items() if taken > 0}
        on_cpu = step.device.type == "cpu"
        operators = operators_of(events, self.updates, work, scale if on_cpu else {}, on_cpu)
        measured = self._measured(phases, operators, occasional, asked)
        predicted = Predicted(self.setup, self.device, self.micro_batch)
        self.tell("asking the planner")
        limit, sentence = verdict(measured)
        rows = sum(rows for rows, _ in self.seen) / self.updates
        return Profile(
            name=self.setup.name,
            device={"name": self.device.name, "kind": self.device.kind, "calibrated": self.device.calibrated},
            updates=self.updates,
            rows=round(rows),
            micro_batch=self.micro_batch,
            seconds_per_update=measured.seconds,
            examples_per_second=rows / measured.seconds,
            phases=phases,
            occasional=occasional,
            limits=limits(measured),
            limit=limit,
            verdict=sentence,
            culprits=culprits(measured),
            advice=advise(measured, predicted.gain),
            operators=tuple(operators),
            flops_per_update=work[""].flops,
            share_of_peak=work[""].compute_seconds / measured.seconds,
            slowdown=sum(slow.values()) / measured.seconds,
            table=table,
            folder=self.folder,
            sorted_by=str(self.detail.sort),
            memory=uses,
            notes=tuple(self.notes),
        )

    @property
    def micro_batch(self) -> int:
        """Rows of the largest micro-batch."""
        rows = max(rows for rows, _ in self.seen)
        return rows if self.step.micro_batch is None else min(rows, self.step.micro_batch)

    def _update(self, windows: Windows) -> Batch:
        window = next(windows)
        with phase("data"):  # the step itself would move it, without a label
            window = window.to(self.step.device)
        self.step(window)
        return window

    def _phases(self, clock: Clock) -> dict[str, float]:
        seconds = clock.seconds()
        return {name: seconds[name] / self.updates for name in _ORDER if name in seconds}

    def _evaluation(self, clock: Clock) -> dict[str, Occasional]:
        """Return what scoring all the run's held-out data takes, from some batches of it; empty where there is none."""
        if self.validation is None:
            return {}
        self._evaluate(self.validation, 1)
        with watched(clock):
            batches = self._evaluate(self.validation, self.updates)
        whole = self.validation.order.windows_per_pass / batches
        every = self.setup.job.evaluate.period(self.loader.order.windows_per_pass)
        return {"evaluation": Occasional(clock.seconds()["evaluation"] * whole, every)}

    def _saving(self, clock: Clock) -> Occasional:
        """Return a save, timed beside the profiler: it may write a lot, and is done once."""
        job = self.setup.job
        every = job.checkpoint.every or job.evaluate.period(self.loader.order.windows_per_pass)
        return Occasional(clock.seconds()["save"], every)

    def _evaluate(self, validation: Loader, most: int) -> int:
        batches = min(validation.order.windows_per_pass, most)
        with closing(validation.windows(0, batches, one_by_one=True)) as windows:
            evaluate(Scored.of(self.step), windows, self.setup.metrics)
        return batches

    def _save(self) -> None:
        state = self.step.state_dict()
        parts = {
            "model": {"parameters": state["parameters"], "buffers": state["buffers"]},
            "run": {"optimizer": state["optimizer"], "progress": state["progress"]},
            **{f"techniques/{name}": part for name, part in state["techniques"].items()},
        }
        with tempfile.TemporaryDirectory(dir=self.folder) as folder, phase("save"):
            checkpoint_files.write(Path(folder) / "update-0", pack(parts), keep=1)

    def _profiled(self, windows: Windows, clock: Clock, memory: bool, tensorboard: bool) -> tuple[str, Any]:
        """Return the table by operator and the events of the updates, of which the trace is written."""
        cuda = [ProfilerActivity.CUDA] if self.step.device.type == "cuda" else []
        silence_profiler()
        profiler = torch.profiler.profile(
            activities=[ProfilerActivity.CPU, *cuda],
            schedule=schedule(wait=1, warmup=1, active=self.updates + 1, repeat=1),
            profile_memory=memory,
            record_shapes=self.detail.shapes,
            with_stack=self.detail.stacks,
            # else events have no stacks: https://github.com/pytorch/pytorch/issues/100253
            experimental_config=_ExperimentalConfig(verbose=True) if self.detail.stacks else None,
        )
        compiled = "compile" in self.names  # whose code has no modules any more
        labels = nullcontext() if compiled else modules_in_trace(self.step.model)
        with profiler, labels, watched(in_trace):
            for _ in range(_UNSEEN):
                self._update(windows)
                profiler.step()
            with watched(both(clock, in_trace)):
                with clock.running():
                    for _ in range(self.updates):
                        self._update(windows)
                        profiler.step()
                if self.validation is not None:
                    self._evaluate(self.validation, self.updates)
                self._save()
        averages = profiler.key_averages(
            group_by_input_shape=self.detail.shapes, group_by_stack_n=_FRAMES if self.detail.stacks else 0
        )
        table = averages.table(sort_by=_COLUMNS[str(self.detail.sort)], row_limit=50)
        (self.folder / TABLE).write_text(table, encoding="utf-8")
        self._write_trace(profiler, tensorboard)
        return table, profiler.events()

    def _write_trace(self, profiler: torch.profiler.profile, tensorboard: bool) -> None:
        if not tensorboard:
            profiler.export_chrome_trace(str(self.folder / TRACE))
            return
        tensorboard_trace_handler(str(self.folder / TENSORBOARD))(profiler)
        (written,) = (self.folder / TENSORBOARD).iterdir()  # a profile is written only once
        shutil.copyfile(written, self.folder / TRACE)

    def _work(self, window: Batch) -> dict[str, Work]:
        """Return what the operators of an update have to do; those of a compiled model as they were before."""
        tf32 = any(each.card.needs == "tf32" for each in self.setup.techniques)
        step = self.step
        if "compile" in self.names:
            step = self._uncompiled(window)
        return work_of(record_update(step, window).trace, self.device, tf32)

    def _uncompiled(self, window: Batch) -> Step:
        techniques = [each for each in self.setup.techniques if each.card.name != "compile"]
        step = self.setup.step(techniques=techniques)
        step.micro_batch = self.step.micro_batch
        step(window)
        return step

    def _memory(self) -> tuple[MemoryUse, ...]:
        """Return the memory of an update of the largest examples, measured and predicted."""
        window, longest = self.loader.worst_window()
        if not longest:
            self.notes.append(
                "The sizes of the examples are not known: the memory is that of the first window."
            )
        step, kind = self.step, self.step.device.type
        with snapshot(step.device, self.folder):
            step(window)
        recorded = record_update(step, window)
        measured = memory_use(recorded.trace, kind, "measured", recorded.modules)
        try:
            predicted = Predicted(self.setup, self.device, self.micro_batch).memory()
        except SnugfitError as error:
            self.notes.append(f"The planner cannot predict the memory: {error}")
            return (measured,)
        return measured, predicted

    def _busy(self) -> float:
        """Return the share of the loading of a window in which the processor computes; all of it where workers do it."""
        if self.setup.plan.num_workers > 0:
            return 1.0
        with closing(self.loader.windows(0, 1)) as windows:
            start, spent = time.perf_counter(), time.process_time()
            next(windows)
            return min(1.0, (time.process_time() - spent) / (time.perf_counter() - start))

    def _measured(
        self,
        phases: Mapping[str, float],
        operators: list[Operator],
        occasional: Mapping[str, Occasional],
        asked: Setup,
    ) -> Measured:
        flops = self.device.flops
        return Measured(
            seconds=sum(phases.values()),
            phases=phases,
            operators=tuple(each for each in operators if each.phase != "data"),
            launch=_launch(self.device),
            occasional={name: each for name, each in occasional.items() if each.every <= asked.windows},
            micro_batches=len(cut(self.seen[-1][0], self.step.micro_batch, 1, self.step.has_batch_norm)),
            num_workers=self.setup.plan.num_workers,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            busy=self._busy(),
            padding=padding_share([lengths for _, lengths in self.seen], self.micro_batch),
            faster=flops.get("bfloat16", 0.0) / flops["float32"],
            techniques=self.names,
        )


def _launch(device: Device) -> float:
    """Return seconds that an operator takes however little it does: on a CPU the host's, else the shortest kernel's."""
    return device.host if device.kind == "cpu" else device.launch


def _warm_up(plan: Plan) -> int:
    """Return updates that are not timed: also those whose windows workers have ready, two each, before the step waits for them."""
    return _UNSEEN + 2 * plan.num_workers
