"""Memory that runs out: in forward and backward the window is run again in finer micro-batches, in the update it is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, Skip, check, release, require, wait
from material import GIB, LLAMAS, error_between, llama, on, technique, tokens_window


@contextmanager
def once_out_of_memory(model: Any) -> Iterator[None]:
    """Temporarily raise what CUDA raises, in the first forward in training mode."""
    import torch

    def fail(module: Any, inputs: Any, outputs: Any) -> None:
        if module.training:
            hook.remove()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    hook = model.register_forward_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def memory_that_runs_out(settings: Settings, step: Any, window: Any) -> Iterator[None]:
    """Temporarily have too little memory for the whole window: a share of the device's on CUDA, an error in one forward on a CPU."""
    if not settings.cuda:
        with once_out_of_memory(step.model):
            yield
        return
    import torch

    release("cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with step.computed(window):
        wait("cuda")
    peak = torch.cuda.max_memory_allocated()
    release("cuda")
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((before + 0.65 * (peak - before)) / whole)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def a_window_counts_twice() -> Iterator[None]:
    """Temporarily keep the gradients of the try that ran out of memory."""
    from snugfit.step.step import Step

    def keep(self: Any) -> None:
        for parameter in self.parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = parameter.detach().clone()

    with mock.patch.object(Step, "drop_gradients", keep):
        yield


@check(
    "a window that runs out of memory is run again and makes the same update",
    60,
    alone=True,
    plants={"memory": a_window_counts_twice},
)
def out_of_memory(settings: Settings) -> Mapping[str, Any]:
    import torch

    from snugfit import Step
    from snugfit.core.batch import Batch
    from tests.laws.problems import gradients

    shape, tokens, rows = settings.size(("small", 1024, 32), ("toy", 16, 8))
    window = on(settings.device, tokens_window(LLAMAS[shape]["vocabulary"], rows, tokens))

    def step() -> Any:
        model = llama(shape, tokens, settings.device)
        return Step(
            model, torch.optim.SGD(model.parameters(), lr=0.1), "causal_lm", nominal=float(rows * tokens)
        )

    plain, scarce = step(), step()
    plain(window)
    reference = {name: tensor.cpu() for name, tensor in gradients(plain).items()}
    del plain
    with memory_that_runs_out(settings, scarce, Batch.of(window)):
        done = scarce(window)
    error = error_between({name: tensor.cpu() for name, tensor in gradients(scarce).items()}, reference)
    replans = [(each.before, each.after) for each in done.replans]
    figures = {"replans": replans, "error": error, "micro_batch": scarce.micro_batch}
    require(bool(replans), "memory did not run out, so nothing was seen", **figures)
    require(
        done.applied and error < 1e-4,
        f"after a window was run again its gradient is {error:.2g} away",
        **figures,
    )
    return figures


@check("memory that runs out in the update itself is an error that says so", 60, alone=True)
def out_of_memory_in_update(settings: Settings) -> Mapping[str, Any]:
    """Leave room for forward and backward but not for the optimizer's states."""
    if not settings.cuda:
        raise Skip("a CPU has no share of memory to be limited to")
    import torch

    from snugfit import Step
    from snugfit.errors import OutOfMemory

    model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(8))).cuda()
    step = Step(model, technique("adamw", learning_rate=1e-3), "mse", micro_batch=4)
    inputs = torch.randn(8, 8192, device="cuda")
    whole = torch.cuda.get_device_properties(0).total_memory
    weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
    torch.cuda.set_per_process_memory_fraction((2.5 * weights_bytes + GIB) / whole)
    try:
        step((inputs, inputs))
    except OutOfMemory as error:
        require("update itself" in str(error), f"the error is about something else: {error}")
        return {"error": str(error)[:300]}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    require(False, "the states of the optimizer fitted, so nothing was seen")
    return {}
