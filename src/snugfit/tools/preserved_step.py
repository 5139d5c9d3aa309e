"""A step of the user's own, tried and given back as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from snugfit.core.random import preserved_elsewhere, preserved_randomness
from snugfit.core.tree import map_tree
from snugfit.step.step import Step
from snugfit.system.memory import release_memory


@contextmanager
def preserved(step: Step) -> Iterator[None]:
    """Temporarily let the step train; on exit it stands where it stood, bit for bit.

    That is: weights, all buffers, the optimizer's state and groups, the techniques' state with the loss scale, progress, the
    micro-batch, gradients, the modes of the modules, and the global random state of torch, NumPy and Python. What a technique
    freezes is what it freezes at this moment of the run. Copies lie on the host, in as many bytes as the state.

    >>> import snugfit as sf
    >>> step = sf.Step(torch.nn.Linear(2, 2), sf.AdamW(learning_rate=0.1))
    >>> before = step.model.weight.tolist()
    >>> with preserved(step):
    ...     _ = step((torch.ones(2, 2), torch.tensor([0, 1])))
    >>> step.model.weight.tolist() == before, step.progress.updates, len(step.optimizer.state)
    (True, 0, 0)
    """
    state = map_tree(_on_host, step.state_dict(), others=copy.deepcopy)
    gradients = [parameter.grad for parameter in step.parameters]  # a window drops them, and writes into none
    modes = [(module, module.training) for module in step.model.modules()]
    seams, micro_batch, kernels = step.seams, step.micro_batch, step.kernels
    with preserved_randomness(step.device), preserved_elsewhere():
        try:
            with step.preserved_buffers():  # also those that a checkpoint leaves out, and what forward makes
                yield
        finally:
            step.seams, step.micro_batch, step.kernels = seams, micro_batch, kernels
            step.load_state_dict(state)
            step.seams.begin(step.model, step.progress, step.seed)
            for parameter, gradient in zip(step.parameters, gradients, strict=True):
                parameter.grad = gradient
            for module, mode in modes:
                module.training = mode
            if step.device.type != "cpu":
                release_memory(step.device)
            if step.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(step.device)  # what was tried is no part of the run's peak


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
