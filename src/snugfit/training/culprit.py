"""Find where a window first goes wrong: the first module or gradient that is not finite."""

from __future__ import annotations

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
from snugfit.training.compute import WindowCompute
from snugfit.training.step import Step

KEPT_WINDOWS = 10
"""Batches that are kept for inspection."""


def find_culprit(step: Step, window: Batch) -> str:
    """Name the first tensor of the window's forward and backward that is not finite.

    Runs the window again, under the same randomness, with a look at each module. Weights, buffers, gradients and
    counters are as before on return. Call it after the step that refused the window.
    """
    first: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            if not first and not _finite(outputs):
                origin = "from finite inputs" if _finite(inputs) else "its inputs already were not"
                first.append(f"output of {name or 'the model'} ({type(module).__name__}), {origin}")

        return hook

    for name, parameter in step.model.named_parameters():
        if not _finite(parameter):
            return f"parameter {name}"
    bad_input = next((place for place, leaf in enumerate(leaves(window.data)) if not _finite(leaf)), None)
    if bad_input is not None:
        return f"the batch itself, tensor {bad_input}"
    hooks = [module.register_forward_hook(look(name)) for name, module in step.model.named_modules()]
    # the step counted the window already; layers draw by the window's number
    step.progress.windows -= 1
    buffers = [buffer.detach().clone() for buffer in step.model.buffers()]
    try:
        with preserved_randomness(step.device):
            moved = window.to(step.device)
            WindowCompute(step, step.seams.batch(moved, step.progress, step.seed), step.seams.loss).run()
        gradients = [
            f"gradient of {name}"
            for name, p in step.model.named_parameters()
            if p.grad is not None and not _finite(p.grad)
        ]
    finally:
        step.progress.windows += 1
        for hook in hooks:
            hook.remove()
        for parameter in step.parameters:
            parameter.grad = None
        with torch.no_grad():
            for buffer, copy in zip(step.model.buffers(), buffers, strict=True):
                buffer.copy_(copy)
    return next(iter([*first, *gradients]), "the loss, or a later pass of a technique")


def keep_window(folder: Path, number: int, window: Batch) -> str | None:
    """Keep a window for inspection as safetensors, with the example ids in its metadata; the first few of a run only.

    Returns:
        The file's name; None if there are enough of them.
    Raises:
        RunFolderError: it cannot be written.
    """
    path = folder / f"window-{number:08d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() and len(list(folder.iterdir())) >= KEPT_WINDOWS:
            return None
        tensors = {
            # safetensors refuses what overlaps: labels are often the inputs themselves
            f"tensor-{place}": leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
            for place, leaf in enumerate(leaves(window.data))
        }
        save_file(tensors, path, metadata={"example_ids": ",".join(map(str, window.ids))})
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path}: the batch cannot be written: {error}.") from error
    return f"{folder.name}/{path.name}"


def _finite(tree: Any) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for leaf in leaves(tree) if _is_float(leaf))


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
