"""The tools around a run on a device: laws certified, sizes and rates found, time told apart, a script watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, check, require
from material import MIB, differing, weights

WIDTH, CLASSES = 64, 3

SCRIPT = """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).to({device!r})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for number in range(24):
    for part in range(4):
        inputs, labels = torch.randn(8, 16).to({device!r}), torch.randint(3, (8,)).to({device!r})
        loss = torch.nn.functional.cross_entropy(model(inputs), labels) / 4
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
"""


def problem(rows: int) -> tuple[Any, list[Any]]:
    """Return a net and rows of each class around a place of its own."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(4 * WIDTH, CLASSES)
    )
    classes = torch.arange(rows) % CLASSES
    inputs = torch.randn(rows, WIDTH) + 3 * torch.nn.functional.one_hot(classes, WIDTH)
    return model, list(zip(inputs, classes, strict=True))


@contextmanager
def batches_that_mix_rows() -> Iterator[None]:
    """Temporarily let each linear layer put out a bit of the mean of its rows, as a layer does that looks across them."""
    import torch.nn.functional as F

    linear: Any = F.linear

    def mixed(inputs: Any, *others: Any) -> Any:
        outputs = linear(inputs, *others)
        return outputs + 0.1 * outputs.mean(0)

    with mock.patch.object(F, "linear", mixed):
        yield


@check("certify holds its laws on the device", 40, plants={"mixed": batches_that_mix_rows})
def certified(settings: Settings) -> Mapping[str, Any]:
    import snugfit as sf

    model, rows = problem(64)
    certificate = sf.certify(
        model, rows, global_batch=16, micro_batch=4, device=settings.device, dtype="float32"
    )
    figures = {law.name: f"{law.verdict}: {law.error}" for law in certificate.laws}
    broken = [law.name for law in certificate.laws if str(law.verdict) == "broken"]
    held = [law.name for law in certificate.laws if str(law.verdict) == "held"]
    require(not broken, f"broken on the device: {', '.join(broken)}", **figures)
    require({"accumulation", "resume"} <= {*held}, "accumulation and resume were not tried", **figures)
    return figures


@check("a micro-batch is found that trains within the memory it was given", 40)
def micro_batch(settings: Settings) -> Mapping[str, Any]:
    """Find the size within a share of what the whole window takes, then make updates with it and with twice as much."""
    import torch

    import snugfit as sf

    rows_of_window = settings.size(16384, 64)
    model, rows = problem(rows_of_window)
    memory = settings.size(112 * MIB, None)  # of which cuBLAS takes 65
    given = {} if memory is None else {"memory": memory}
    sizes = sf.find_batch(
        model,
        rows,
        optimizer=sf.SGD(learning_rate=0.1),
        global_batch=rows_of_window,
        device=settings.device,
        **given,
    )
    figures: dict[str, Any] = {
        "largest": sizes.largest,
        "rows": [f"{r.micro_batch}: {r.verdict}" for r in sizes.rows],
    }
    require(sizes.window_rows == rows_of_window, "another window was tried", **figures)
    if not settings.cuda:
        return figures
    require(sizes.largest < rows_of_window, "all fits, so that nothing was looked for", **figures)
    step = sf.Step(model.to("cuda"), sf.SGD(learning_rate=0.1), micro_batch=sizes.largest)
    window = tuple(torch.stack(column).to("cuda") for column in zip(*rows, strict=True))
    for size in (sizes.largest, 2 * sizes.largest):
        step.micro_batch = size
        step(window)
        torch.cuda.reset_peak_memory_stats()
        step(window)
        figures[f"peak of {size}"] = torch.cuda.max_memory_allocated()
    peak = figures[f"peak of {sizes.largest}"]
    require(peak <= 1.1 * memory, f"{peak / MIB:.1f} MiB are in use with the size found", **figures)
    return figures


@check("finding a rate and profiling leave the model as it is, and say what is plausible", 60)
def rate_and_profile(settings: Settings) -> Mapping[str, Any]:
    import snugfit as sf

    model, rows = problem(256)
    before = weights(model)
    common = {"optimizer": sf.SGD(learning_rate=0.1), "global_batch": 32, "device": settings.device}
    rate = sf.find_lr(model, rows, start=1e-3, end=10.0, range_updates=60, **common)
    profiled = sf.profile(model, rows, steps=5, output=settings.folder / "profiles", **common)
    figures = {
        "learning_rate": rate.learning_rate,
        "phases": dict(profiled.phases),
        "seconds_per_update": profiled.seconds_per_update,
        "limit": profiled.limit,
        "sorted_by": profiled.sorted_by,
        "operators": [each.name for each in profiled.operators[:5]],
    }
    require(not differing(before, weights(model)), "the model has other weights afterwards", **figures)
    require(1e-3 < (rate.learning_rate or 0) < 1, "no plausible rate", **figures)
    whole = sum(profiled.phases.values())
    apart = abs(whole - profiled.seconds_per_update) / profiled.seconds_per_update
    require(apart < 0.2, f"phases add up to {whole:.3g} s of {profiled.seconds_per_update:.3g}", **figures)
    require(
        profiled.sorted_by == ("device" if settings.cuda else "host"), "sorted by another time", **figures
    )
    return figures


@check("the doctor finds a device that is read in each micro-batch", 60, modules=("typer",))
def doctor(settings: Settings) -> Mapping[str, Any]:
    """Watch a script that reads its loss four times an update; on a CPU, where a read costs nothing, that is worth a look."""
    script = settings.folder / "train.py"
    script.write_text(SCRIPT.format(device=settings.device))
    line = SCRIPT.splitlines().index("        total += loss.item()") + 1
    command = [sys.executable, "-m", "snugfit", "doctor", "--json", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=settings.folder, env=dict(os.environ), capture_output=True, text=True)
    require(done.returncode in (0, 1, 3), f"the doctor ended with {done.returncode}: {done.stderr[-2000:]}")
    report = json.loads(done.stdout[done.stdout.index("{") :])
    reads = [each for each in report["findings"] if each["pitfall"] == "device_reads"]
    figures = {
        "findings": [f"{each['pitfall']} ({each['certainty']})" for each in report["findings"]],
        "code": done.returncode,
    }
    require(
        [each["where"] for each in reads] == [f"train.py:{line}"],
        "the read was not found at its line",
        **figures,
    )
    certainty = "likely" if settings.cuda else "worth a look"
    require(reads[0]["certainty"] == certainty, f"it is called {reads[0]['certainty']}", **figures)
    return figures
