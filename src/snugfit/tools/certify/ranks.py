"""The law of ranks: two processes with half a window each make the update of one with the whole."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from snugfit.core.technique import Stage
from snugfit.errors import SnugfitError
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.results.verdicts import Law, Verdict
from snugfit.step.step import Step
from snugfit.system.pickling import dumps
from snugfit.system.processes import leave_as_rank
from snugfit.tools.certify import compare
from snugfit.tools.certify.trial import Trials

_MODULE = "snugfit.tools.certify.ranks"
_SENT, _RESULT = "trials.pickle", "found.safetensors"
_POLL_SECONDS = 0.05
_WHOLE_WINDOW = ("batch", "gradients")
"""Seams that look at all rows of a window, which a rank has half of."""
NOT_RUN = "not certified, for want of two ranks:"


class _Failed(Exception):
    """A process ended, and said why."""


def ranks(tried: Trials, split: Law, folders: Sequence[Path] = (), timeout: float = 300.0) -> Law:
    """Check that two processes on the CPU, which meet through gloo, make the update of one.

    Args:
        split: what came of splitting a window on one device: what stands against that stands against this too.
        folders: where modules of the user's own are looked for.
        timeout: in seconds.
    """
    against = _against(tried)
    if against is not None:
        return Law("ranks", Verdict.EXEMPT, None, tried.bound, reasons=(against,))
    alone = tried.step(tried.micro_batch)
    if not alone(tried.windows[0]).applied:
        why = f"{NOT_RUN} the first window makes no update"
        return Law("ranks", Verdict.EXEMPT, None, tried.bound, reasons=(why,))
    unused = [n for n, p in alone.model.named_parameters() if p.requires_grad and p.grad is None]
    if unused:  # torch's wrapper waits for a gradient of each, or searches the graph for those that get none
        why = f"{NOT_RUN} {len(unused)} parameters that train got no gradient, such as '{unused[0]}'"
        return Law("ranks", Verdict.EXEMPT, None, tried.bound, reasons=(why,))
    names = [name for name, _ in alone.model.named_parameters()]
    try:
        result = _together(tried, folders, timeout)
    except (OSError, pickle.PicklingError, TypeError, AttributeError, _Failed) as failure:
        reason = str(failure) if isinstance(failure, _Failed) else f"{type(failure).__name__}: {failure}"
        return Law("ranks", Verdict.EXEMPT, None, tried.bound, reasons=(f"{NOT_RUN} {reason}",))
    errors = _errors(result, _numbered_tensors(alone), names, tried.noise)
    error, worst = compare.worst_of(errors)
    if error <= tried.bound:
        return Law("ranks", Verdict.HELD, error, tried.bound, worst)
    if split.verdict is Verdict.EXEMPT:
        return Law("ranks", Verdict.EXEMPT, error, tried.bound, worst, split.module, split.reasons)
    reasons = split.reasons or ("the halves of a window do not add up to the whole",)
    return Law("ranks", Verdict.BROKEN, error, tried.bound, worst, split.module, reasons)


def _against(tried: Trials) -> str | None:
    """Return why two ranks cannot be expected to make the update of one; None where they can."""
    setup = tried.setup
    if tried.device.type != "cpu":
        return f"{NOT_RUN} it is tried with processes on the CPU, and the run is on {tried.device}"
    quantising = [
        each.card.name for each in setup.techniques if {Stage.QUANTISE, Stage.NARROW} & {*each.card.stages}
    ]
    if quantising:
        return f"{NOT_RUN} '{quantising[0]}' stores weights that cannot be handed to another process"
    if has_batch_norm(setup.material.model):
        return "batch norm takes its statistics from the examples of a rank"
    coupling = [each.card.name for each in setup.techniques if each.card.couples_examples]
    if coupling:
        return f"'{coupling[0]}' makes each example's loss depend on the others of its micro-batch, as its card says"
    looking = [each.card.name for each in setup.techniques if {*_WHOLE_WINDOW} & {*each.card.seams}]
    if looking:
        return (
            f"{NOT_RUN} '{looking[0]}' works on whole windows, which runs on several devices are to hand it"
        )
    if tried.step().whole_windows:
        return f"{NOT_RUN} the loss compares the rows of a window, of which a rank has half"
    return None


def _together(tried: Trials, folders: Sequence[Path], timeout: float) -> dict[str, Tensor]:
    """Return what the first of two processes is left with."""
    material = replace(
        tried.setup.material, train=range(len(tried.setup.material.train)), validation=None, collate=None
    )
    sent = dumps(
        replace(tried, setup=replace(tried.setup, material=material, metrics={}), windows=tried.windows[:1])
    )
    path = os.pathsep.join(filter(None, [*map(str, folders), *sys.path]))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / _SENT).write_bytes(sent)
        processes = [_start(folder, rank, environment) for rank in range(2)]
        try:
            _wait(processes, folder, timeout)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return load_file(folder / _RESULT)


def _start(folder: Path, rank: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with _words_of(folder, rank).open("wb") as words:
        return subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(folder), str(rank)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            env=dict(environment),
        )


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout: float) -> None:
    """Wait until both have ended; one that fails leaves the other waiting for it.

    Raises:
        _Failed: one failed, or they took too long.
    """
    end = time.monotonic() + timeout
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end:
            raise _Failed(f"no answer after {timeout:g} seconds")
        if any(process.poll() for process in processes):
            break
        time.sleep(_POLL_SECONDS)
    for rank, process in enumerate(processes):
        if process.poll():
            lines = _words_of(folder, rank).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise _Failed(lines[-1] if lines else f"a process ended with code {process.returncode}")


def _words_of(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.txt"


def _numbered_tensors(step: Step) -> dict[str, Tensor]:
    """Return gradients and weights by the parameter's number: wrappers change names, and not the order."""
    tensors = {f"weight/{number}": each.detach() for number, each in enumerate(step.parameters)}
    tensors |= {
        f"gradient/{number}": p.grad for number, p in enumerate(step.parameters) if p.grad is not None
    }
    return {name: each.clone(memory_format=torch.contiguous_format) for name, each in tensors.items()}


def _errors(
    actual: dict[str, Tensor], reference: dict[str, Tensor], names: Sequence[str], noise: float
) -> dict[str, float]:
    def named(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        return {
            names[int(key.removeprefix(kind))]: each for key, each in tensors.items() if key.startswith(kind)
        }

    gradient = named(reference, "gradient/")
    moved = compare.without_noise(named(reference, "weight/"), gradient, noise)
    updated = named(actual, "weight/")
    weights = compare.relative_errors({name: updated[name] for name in moved}, moved)
    gradients = compare.relative_errors(named(actual, "gradient/"), gradient)
    return {name: max(weights.get(name, 0.0), gradients.get(name, 0.0)) for name in {**weights, **gradients}}


def main(folder: Path, rank: int) -> None:
    """Train on this process's half of the window, one of the two, and leave the result."""
    import torch.distributed as dist

    from snugfit.strategies.ddp import DataParallel

    tried: Trials = pickle.loads((folder / _SENT).read_bytes())
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    try:
        step = tried.step(tried.micro_batch, strategy=DataParallel())
        (window,) = tried.windows
        half = window.rows // 2
        step(window.select(range(half) if rank == 0 else range(half, window.rows)))
        if rank == 0:
            save_file(_numbered_tensors(step), folder / _RESULT)
        dist.barrier()  # one that leaves while the other still receives takes it down
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except SnugfitError as error:
        print(error, file=sys.stderr)
        leave_as_rank(1)
    leave_as_rank(0)
