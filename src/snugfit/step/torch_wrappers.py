"""Torch's `optimizer.step()` and `backward()` without the Python around them that only serves who listens.

Around every step of an optimizer torch labels it for profilers, calls hooks and sets its switch for gradients, and before every backward it
looks for subclasses and at shapes and logs. With a model whose update takes microseconds that is a fifth of the update. Where nobody listens, the same functions inside are
called. What somebody has put in their place, on an object or on a class, is called as it is.

What is called here is private by name; tests/unit/step/test_torch_wrappers.py tells when it moves, and then torch's own way is taken.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph as autograd_graph
from torch.autograd.variable import Variable
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)


def _nothing(_optimizer: Any) -> None:
    """Stand in for the step of an optimizer."""


_STEP_WRAPPER: Any = Optimizer.profile_hook_step(_nothing).__code__
_GRAD_SWITCH: Any = _use_grad_for_differentiable(_nothing).__code__
_BACKWARD_FILES = (torch._tensor.__file__, torch.autograd.__file__)


def step_optimizer(optimizer: Optimizer) -> None:
    """Call `optimizer.step()`."""
    step: Any = type(optimizer).step
    if (
        getattr(step, "__code__", None) is not _STEP_WRAPPER
        or "step" in vars(optimizer)
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or torch._C._autograd._profiler_enabled()
    ):
        optimizer.step()
        return
    inner = step.__wrapped__
    if getattr(inner, "__code__", None) is not _GRAD_SWITCH or optimizer.defaults["differentiable"]:
        inner(optimizer)
        return
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        inner.__wrapped__(optimizer)
    finally:
        torch._C._set_grad_enabled(before)


def backward(values: Tensor, gradient: Tensor) -> None:
    """Call `values.backward(gradient)`, for a gradient of the shape of the values."""
    if (
        type(values) is not Tensor
        or (
            torch.Tensor.backward.__code__.co_filename,
            torch.autograd.backward.__code__.co_filename,
        )
        != _BACKWARD_FILES
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._are_functorch_transforms_active()
    ):
        values.backward(gradient)
        return
    run = autograd_graph._engine_run_backward
    if _only_host() and not autograd_graph.log.isEnabledFor(logging.DEBUG):
        run = Variable._execution_engine.run_backward  # no thread of a device is to see this thread's context
    run((values,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


@functools.cache
def _only_host() -> bool:
    return not torch.accelerator.is_available()
