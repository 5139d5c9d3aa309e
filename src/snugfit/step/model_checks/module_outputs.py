"""The outputs of a model's modules, kept while it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from snugfit.core.tree import leaves

Outputs = dict[str, list[Tensor]]
"""The outputs of each module, call by call, by its name, in the order in which they were done first."""


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
