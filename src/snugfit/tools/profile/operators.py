"""The operators of some updates, from the events of torch's profiler: how long each takes, in which phase and module."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from snugfit.planner.cost.flops import operator
from snugfit.planner.cost.records import Phase, Trace
from snugfit.planner.cost.roofline import number_type, traffic_seconds
from snugfit.planner.devices.device import Device
from snugfit.tools.profile.labels import MODULE, PHASE

_OUTSIDE_UPDATE = (Phase.SETUP, Phase.PRIME, Phase.EVALUATION, Phase.SAVE)
_NOT_OPERATORS = ("autograd::", "torch::", PHASE, MODULE)
_ENGINE = "autograd::engine::"
_FRAME = re.compile(r"[^<].*\(\d+\): ")
"""A frame of Python as torch writes it: file(line): function."""

_BACKWARD = 1
"""The scope of events that are nodes of the backward graph, as torch numbers scopes."""


@dataclass(frozen=True)
class Work:
    """The work of an operator in an update.

    It has how often it runs, its FLOPs, and the seconds that these, and the bytes that it moves, take a
    device at its peak.
    """

    calls: int = 0
    flops: int = 0
    moved_bytes: int = 0
    compute_seconds: float = 0.0
    memory_seconds: float = 0.0


@dataclass(frozen=True)
class Operator:
    """An operator of an update, with its own seconds in all.

    It has the phase and the module (a dotted name) that each has most of them, and the share of them that
    this module has.

    Args:
        host_seconds: of the processor, which starts the kernels of an accelerator; on a CPU its seconds without their scale.
        shapes: of the inputs that take most of the time; empty where they were not asked for.
        line: file, first line and name of the function outside of torch and Snugfit that most of the time comes from; empty where it was not
            asked for.
    """

    name: str
    seconds: float
    calls: float
    phase: str
    module: str
    module_share: float
    work: Work = field(default_factory=Work)
    host_seconds: float = 0.0
    shapes: str = ""
    line: str = ""


def work_of(trace: Trace, device: Device, tf32: bool = False) -> dict[str, Work]:
    """Return what the operators of a recorded update have to do, by their bare names, and "" for all of them."""
    work: dict[str, Work] = {}
    for op in trace.ops:
        if op.place.phase in _OUTSIDE_UPDATE:
            continue
        peak = device.flops.get(number_type(op.dtype, tf32), device.flops["float32"])
        traffic = traffic_seconds(op.name, op.read, op.written, device) if op.read + op.written else 0.0
        for name in (operator(op.name), ""):
            sum_ = work.get(name, Work())
            work[name] = Work(
                sum_.calls + 1,
                sum_.flops + op.flops,
                sum_.moved_bytes + op.read + op.written,
                sum_.compute_seconds + op.flops / peak,
                sum_.memory_seconds + traffic,
            )
    return work


def operators_of(
    events: Sequence[Any], updates: int, work: Mapping[str, Work], scale: Mapping[str, float], on_cpu: bool
) -> list[Operator]:
    """Return the operators of an update, the longest first.

    Args:
        events: torch's, of `updates` updates; what is in "evaluation" and "save" is left out.
        scale: of phases, what they take without the profiler over what they take with it.
        on_cpu: whether an operator's time is that of the host, and not that of the kernels that it starts.
    """
    seconds: Counter[tuple[str, str, str]] = Counter()
    calls: Counter[str] = Counter()
    host: Counter[str] = Counter()
    within, shapes, lines = (_by_name(), _by_name(), _by_name())
    for event, phase, module in _placed(events):
        if phase in ("evaluation", "save", ""):
            continue
        taken = event.self_cpu_time_total if on_cpu else event.self_device_time_total
        seconds[event.name, phase, module] += taken * scale.get(phase, 1.0) / 1e6 / updates
        calls[event.name] += 1
        host[event.name] += event.self_cpu_time_total / 1e6 / updates
        within[event.name][_counted_as(event, work)] += taken
        shapes[event.name][_shapes(event)] += taken
        lines[event.name][_line(event)] += taken
    operators = []
    for name, count in calls.items():
        parts = {key[1:]: taken for key, taken in seconds.items() if key[0] == name}
        whole, phases, modules = sum(parts.values()), Counter[str](), Counter[str]()
        for (phase, module), taken in parts.items():
            phases[phase] += taken
            modules[module] += taken
        (phase, _), (module, most) = phases.most_common(1)[0], modules.most_common(1)[0]
        share = most / whole if whole > 0 else 0.0
        counted, shape, line = (each[name].most_common(1)[0][0] for each in (within, shapes, lines))
        own = work[counted] if counted else Work()
        operators.append(
            Operator(name, whole, count / updates, phase, module, share, own, host[name], shape, line)
        )
    return sorted(operators, key=lambda each: -each.seconds)


def _by_name() -> defaultdict[str, Counter[str]]:
    """Return seconds by the name of an operator and something of its events."""
    return defaultdict(Counter)


def _shapes(event: Any) -> str:
    """Return the shapes of an event's tensors; a number has none."""
    return ", ".join("×".join(map(str, shape)) for shape in event.input_shapes or () if shape)


def _line(event: Any) -> str:
    """Return the innermost function of an event's stack outside of torch and Snugfit, or of all if there is none outside."""
    frames = [frame for frame in event.stack or () if _FRAME.match(frame)]
    outside = (frame for frame in frames if not frame.startswith(("torch/", "snugfit/")))
    return next(outside, frames[0] if frames else "")


def _placed(events: Iterable[Any]) -> Iterator[tuple[Any, str, str]]:
    """Yield each operator's event with the phase that it begins in, "" outside of all, and its module.

    Phases go by time, since a backward may run on another thread than the one that is in the phase. A module goes by the label
    around the event, and in a backward by that of the forward which made the node of the graph.
    """
    ordered = sorted(
        (event for event in events if str(event.device_type).endswith("CPU")),
        key=lambda event: (event.time_range.start, -event.time_range.end),
    )
    phases: list[Any] = []
    modules: list[Any] = []
    made_in: dict[int, str] = {}
    for event in ordered:
        for open_ in (phases, modules):
            while open_ and open_[-1].time_range.end <= event.time_range.start:
                open_.pop()
        if event.name.startswith(PHASE):
            phases.append(event)
        elif event.name.startswith(MODULE):
            modules.append(event)
        elif _is_operator(event):
            module = modules[-1].name.removeprefix(MODULE) if modules else ""
            node = None if module else _node(event)
            if (
                node is None and event.sequence_nr >= 0
            ):  # the last one with a number makes the node that has it
                made_in[event.sequence_nr] = module
            yield event, _phase(phases), module if node is None else made_in.get(node, "")


def _phase(open_: list[Any]) -> str:
    names = [event.name.removeprefix(PHASE) for event in open_]
    occasion = next((name for name in names if name in ("evaluation", "save")), None)
    return occasion or (names[-1] if names else "")


def _is_operator(event: Any) -> bool:
    return "::" in event.name and not event.name.startswith(_NOT_OPERATORS) and not event.is_user_annotation


def _counted_as(event: Any, work: Mapping[str, Work]) -> str:
    """Return the name under which an operator's work is known: its own, or that of the one that calls it, as `zeros` calls `fill_`."""
    while event is not None:
        name: str = event.name.rpartition("::")[2]
        if name and _is_operator(event) and name in work:
            return name
        event = event.cpu_parent
    return ""


def _node(event: Any) -> int | None:
    """Return the number of the node of the graph that an event belongs to."""
    while event is not None:
        if event.sequence_nr >= 0 and (event.scope == _BACKWARD or event.name.startswith(_ENGINE)):
            number: int = event.sequence_nr
            return number
        event = event.cpu_parent
    return None
