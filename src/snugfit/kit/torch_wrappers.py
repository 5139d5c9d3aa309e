"""Torch's `optimizer.step()` and `backward()` without the Python around them that only serves who listens.

Around every step of an optimizer torch labels it for profilers and calls hooks, and before every backward it looks for subclasses and at
shapes. With a model whose update takes microseconds that is a fifth of the update. Where nobody listens, the same functions inside are
called. What somebody has put in their place, on an object or on a class, is called as it is.

What is called here is private by name; tests/unit/kit/test_torch_wrappers.py tells when it moves, and then torch's own way is taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def _nothing(_optimizer: Any) -> None:
    """Stand in for the step of an optimizer."""


_STEP_WRAPPER: Any = Optimizer.profile_hook_step(_nothing).__code__
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
    else:
        step.__wrapped__(optimizer)


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
    else:
        _engine_run_backward(
            (values,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
