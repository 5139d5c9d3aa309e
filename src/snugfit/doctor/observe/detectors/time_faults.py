"""Findings on time: switches for debugging that stay on, and numbers that are read from the device."""

from __future__ import annotations

from collections import Counter

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.script_events import Backward, Read, Step

LEAST_PASSES = 10
NEARLY_ALL = 0.9


def debugging_left_on(log: Log) -> list[Finding]:
    """Detect that anomaly mode, or a profiler, was on in every backward pass, of which a look for a fault takes a few."""
    passes = list(log.of(Backward))
    profiled = 0 if passes or log.passes_unseen > log.passes_profiled else log.passes_profiled
    findings = []
    for name, times, fix in (
        (
            "anomaly mode",
            len(passes) if all(each.anomaly for each in passes) else 0,
            "with torch.autograd.detect_anomaly():   # around the few updates that are looked at",
        ),
        (
            "a profiler",
            profiled,
            "profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1))",
        ),
    ):
        if times >= LEAST_PASSES:
            findings.append(
                Finding(
                    "debugging_left_on",
                    Certainty.LIKELY,
                    f"All {times} backward passes ran under {name}, which keeps a record of every operator.",
                    log.switches.get(name, ""),
                    (),
                    fix,
                )
            )
    return findings


def device_reads(log: Log) -> list[Finding]:
    """Detect that nearly each micro-batch waits for a number; on a CPU, where nothing waits, only if more than the updates read one."""
    reads = list(log.of(Read))
    passes = sum(1 for _ in log.of(Backward))
    if passes < LEAST_PASSES or not reads:
        return []
    at, times = Counter(read.at for read in reads).most_common(1)[0]
    first = next(read for read in reads if read.at == at)
    waits = first.device != "cpu"
    accumulates = passes >= 2 * sum(1 for _ in log.of(Step))
    if times < NEARLY_ALL * passes or not (waits or accumulates):
        return []
    effect = (
        ": each waits for all that the device has to do." if waits else "; on a GPU each would wait for it."
    )
    return [
        Finding(
            "device_reads",
            Certainty.LIKELY if waits else Certainty.WORTH_A_LOOK,
            f"{first.function}() reads a number in {times} of {passes} micro-batches{effect}",
            at,
            (),
            "total += loss.detach()   # and total.item() once, where it is printed",
        )
    ]


DETECTORS = (debugging_left_on, device_reads)
