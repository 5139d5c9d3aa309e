"""A forward that leaves no trace, for checks of a model on its first window, and the outputs of its modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.random import preserved_elsewhere, preserved_randomness
from snugfit.core.scalar_reads import read
from snugfit.core.tree import leaves
from snugfit.errors import SnugfitError
from snugfit.kit.precision.autocast import casting_anew
from snugfit.kit.precision.product_rounding import products_as_chosen
from snugfit.step.module_modes import eval_mode
from snugfit.step.step_views import ForwardStep
from snugfit.system.rounding import allowed_rounding, in_float64

FAILURES = (
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    SnugfitError,
)
"""The errors of a model or a loss that cannot do what is tried; training itself will say what is wrong, if anything is."""


Outputs = dict[str, list[Tensor]]
"""The outputs of each module, call by call, by its name, in the order in which they were done first."""


@torch.no_grad()
def losses_of_rows(
    step: ForwardStep, batch: Batch, *, outputs: bool = False
) -> tuple[tuple[Tensor, Tensor], float, Outputs]:
    """Compute the user's own loss in eval mode, so without dropout, and with batch norm's averages.

    Weights, buffers, gradients, modes and random state are as before on return.

    Args:
        outputs: also keep what each module gives.
    Returns:
        The loss and the weight of each row; the relative error that rounding may come to; the outputs by module.
    """
    with ExitStack() as stack:
        batch = stack.enter_context(step.inputs.given(batch.to(step.device)))
        stack.enter_context(preserved_randomness(step.device))
        stack.enter_context(preserved_elsewhere())
        stack.enter_context(products_as_chosen(step.device))
        stack.enter_context(step.preserved_buffers())
        stack.enter_context(eval_mode(step.model))
        stack.enter_context(step.strategy.score(step.model))
        stack.enter_context(step.seams.forward(batch))
        stack.enter_context(casting_anew())
        recorded = stack.enter_context(outputs_recorded(step.model)) if outputs else {}
        terms = step.seams.user_loss(step.forward(batch), batch).by_row()
        assert terms.weights is not None
        return (terms.values, terms.weights), allowed_rounding(step.model, step.device), recorded


def relative_distance(one: Tensor, other: Tensor) -> float:
    """Return the relative L2 distance of the finite numbers; infinite where others are finite in one than in the other.

    >>> relative_distance(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
    0.1
    """
    finite = one.isfinite()
    if not torch.equal(finite, other.isfinite()):
        return torch.inf
    one, other = in_float64(one[finite]), in_float64(other[finite])
    length = other.norm()
    error: float = read((one - other).norm() / torch.where(length > 0, length, 1.0), assume=0.0)
    return error


@contextmanager
def outputs_recorded(model: nn.Module) -> Iterator[Outputs]:
    """Temporarily keep the outputs of each module: of each call the first floating tensor.

    >>> import torch
    >>> with outputs_recorded(nn.Sequential(nn.Identity())) as outputs:
    ...     pass
    >>> outputs
    {}
    """
    outputs: Outputs = {}

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            # a subclass may stand for what is never computed whole
            whole = (leaf for leaf in leaves(output) if type(leaf) is Tensor and leaf.is_floating_point())
            first = next(whole, None)
            if first is not None:
                outputs.setdefault(name, []).append(first.detach().clone())

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
