"""Find where a window first goes wrong: the first module or gradient that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.random import preserved_randomness
from snugfit.core.tree import leaves
from snugfit.errors import RunFolderError
from snugfit.kit.sharded_tensors import own_part
from snugfit.step.step import Step
from snugfit.step.window_gradients import WindowCompute
from snugfit.strategies.base import Strategy

Origins = Callable[[Sequence[int]], list[str]]
MOST_WINDOWS = 10
"""Batches that are kept for inspection."""
_NAMED = 3


def find_culprit(step: Step, window: Batch, origins: Origins = lambda _: []) -> str:
    """Name the first tensor of the window's forward and backward that is not finite, on any rank.

    Runs the window again, under the same randomness, with a look at each module. Weights, buffers, gradients and
    counters are as before on return. Call it after the step that refused the window. All ranks call it and get the same answer: they
    agree before each pass, because a rank whose own rows and shards are finite would wait in a pass that the others do not make.

    Args:
        origins: where examples of the window come from, by their ids.
    """
    strategy = step.strategy
    bad = (f"parameter {name}" for name, each in step.model.named_parameters() if not _finite(own_part(each)))
    if (parameter := _first_of_ranks(strategy, next(bad, None))) is not None:
        return parameter
    bad = (
        f"the batch itself, tensor {place}{_examples(leaf, window, origins)}"
        for place, leaf in enumerate(leaves(window.data))
        if not _finite(leaf)
    )
    if (tensor := _first_of_ranks(strategy, next(bad, None))) is not None:
        return tensor
    outputs, gradients = _run_again(step, window)
    if (output := _first_of_ranks(strategy, next(iter(outputs), None))) is not None:
        return output
    gradient = _first_of_ranks(strategy, next(iter(gradients), None))
    return gradient or "the loss, or a later pass of a technique"


def _run_again(step: Step, window: Batch) -> tuple[list[str], list[str]]:
    """Return the first module output of this rank's rows that is not finite, and the gradients that are not."""
    outputs: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not outputs and not _finite(output):
                origin = "from finite inputs" if _finite(inputs) else "its inputs already were not"
                outputs.append(f"output of {name or 'the model'} ({type(module).__name__}), {origin}")

        return hook

    hooks = [module.register_forward_hook(look(name)) for name, module in step.model.named_modules()]
    # the step counted the window already; layers draw by the window's number
    step.progress.windows -= 1
    try:
        with preserved_randomness(step.device), step.preserved_buffers():
            shared = step.padding.applied(step.shared(window.to(step.device)))
            WindowCompute(step, step.transformed(shared), step.seams.loss).run()
        gradients = [
            f"gradient of {name}"
            for name, gradient in step.gradients().items()
            if not _finite(own_part(gradient))
        ]
    finally:
        step.progress.windows += 1
        for hook in hooks:
            hook.remove()
        step.drop_gradients()
    return outputs, gradients


def _first_of_ranks(strategy: Strategy, finding: str | None) -> str | None:
    """Return the finding of the first rank that has one, with its rank where others have another; all ranks call it."""
    findings = strategy.tell(finding)
    rank = next((rank for rank, each in enumerate(findings) if each is not None), None)
    if rank is None:
        return None
    first: str = findings[rank]
    return first if all(each == first for each in findings) else f"{first} (rank {rank})"


def keep_window(
    folder: Path,
    number: int,
    window: Batch,
    strategy: Strategy | None = None,
    origins: Origins = lambda _: [],
) -> str | None:
    """Keep a window for inspection as safetensors, with the examples' ids and origins in its metadata; the first few of a run only.

    Each of several ranks writes the rows that it has, under a name of its own; all call it.

    Returns:
        The file's name, of several ranks with * for their numbers; None if there are enough of them.
    Raises:
        RunFolderError: it cannot be written, on this rank or another one.
    """
    strategy = strategy or Strategy()
    name = f"window-{number:08d}"
    problem: OSError | SafetensorError | None = None
    try:
        folder.mkdir(exist_ok=True)
        room = _has_room(folder, name)
    except OSError as error:
        room, problem = False, error
    room = strategy.tell(room)[0]  # another rank may see what the first one has written by then
    if room and (window.share is None or window.share.rows):
        path = folder / f"{name}{_suffix(strategy, strategy.rank)}.safetensors"
        try:
            _write(path, window, origins(window.ids))
        except (OSError, SafetensorError) as error:
            problem = error
    for rank, reason in enumerate(strategy.tell(None if problem is None else str(problem))):
        if reason is not None:
            path = folder / f"{name}{_suffix(strategy, rank)}.safetensors"
            raise RunFolderError(path, f"the batch cannot be written: {reason}", "Free space.") from problem
    return f"{folder.name}/{name}{_suffix(strategy, '*')}.safetensors" if room else None


def _has_room(folder: Path, name: str) -> bool:
    """Return whether the window of this name is there already, or there are not enough others."""
    names = {path.name[: len(name)] for path in folder.iterdir()}
    return name in names or len(names) < MOST_WINDOWS


def _suffix(strategy: Strategy, rank: int | str) -> str:
    return "" if strategy.world_size == 1 else f"-rank-{rank}"


def _write(path: Path, window: Batch, origins: Sequence[str]) -> None:
    tensors = {
        # safetensors refuses what overlaps: labels are often the inputs themselves
        f"tensor-{place}": leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
        for place, leaf in enumerate(leaves(window.data))
    }
    metadata = {"example_ids": ",".join(map(str, window.ids))}
    if origins:
        metadata["examples"] = "\n".join(origins)
    save_file(tensors, path, metadata=metadata)


def _examples(leaf: Tensor, window: Batch, origins: Origins) -> str:
    """Return the examples in whose rows of a tensor something is not finite, in words."""
    if leaf.ndim == 0 or leaf.shape[0] != len(window.ids):
        return ""
    rows = (~torch.isfinite(leaf.reshape(len(window.ids), -1))).any(dim=1).nonzero().flatten().tolist()
    named = origins([window.ids[row] for row in rows[:_NAMED]])
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f", in {', '.join(named)}{more}" if named else ""


def _finite(tree: Any) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for leaf in leaves(tree) if _is_float(leaf))


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
