"""How the laws compare: states bit for bit, tensors by their relative error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from snugfit.kit.optimizers.combined import CombinedOptimizer
from snugfit.kit.optimizers.one_by_one import ShadowOptimizer
from snugfit.step.step import Step
from snugfit.tools.certify import technique_laws


def saved(step: Step) -> dict[str, Any]:
    """The state, as a process that starts later would read it from tensors and JSON."""
    state: dict[str, Any] = _copied(step.state_dict())
    return state


def tensors(tree: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of nested dicts and lists by its path."""
    if isinstance(tree, dict):
        pairs = [(f"{path}/{key}", value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        pairs = [(f"{path}/{place}", value) for place, value in enumerate(tree)]
    else:
        return {path: tree}
    return {name: leaf for key, value in pairs for name, leaf in tensors(value, key).items()}


def differences(first: Any, second: Any) -> list[str]:
    """Paths at which two states are not the same bit for bit."""
    one, other = tensors(first), tensors(second)
    missing = [f"{path} is on one side only" for path in sorted(set(one) ^ set(other))]
    return missing + [path for path in one if path in other and not _same(one[path], other[path])]


def besides_scale(step: Step, paths: set[str]) -> set[str]:
    """The paths that are not of the loss scale, which alone may change when a window is not finite."""
    return technique_laws.besides_scale(step.seams, paths)


def relative_error(tensors: dict[str, Tensor], reference: dict[str, Tensor], floor: float = 1e-3) -> float:
    """Largest relative L2 error of a tensor.

    A tensor that is zero but for rounding (an attention's key bias has no gradient) is measured by `floor` times
    the length of all tensors together.
    """
    assert set(tensors) == set(reference), f"on one side only: {set(tensors) ^ set(reference)}"
    total = torch.cat([tensor.double().flatten() for tensor in reference.values()]).norm()
    errors = [
        (tensors[name].to(tensor.device).double() - tensor.double()).norm()
        / torch.maximum(tensor.double().norm(), floor * total)
        for name, tensor in reference.items()
    ]
    return float(torch.stack(errors).nan_to_num(nan=float("inf")).max())


@contextmanager
def gradients_taken(step: Step) -> Iterator[dict[str, Tensor]]:
    """Within, copies of the gradients as the optimizer gets them: those that it frees in the backward have gone afterwards."""
    names = {parameter: name for name, parameter in step.model.named_parameters()}
    taken: dict[str, Tensor] = {}
    if isinstance(step.optimizer, ShadowOptimizer):
        optimizer, lend = step.optimizer, step.optimizer.lend

        def lending(parameters: Iterable[nn.Parameter]) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
            for parameter in parameters:
                gradient = optimizer.gradient_of(parameter)
                assert gradient is not None
                taken[names[parameter]] = gradient.detach().clone()
                yield from lend([parameter])

        with mock.patch.object(step.optimizer, "lend", lending):
            yield taken
        return

    def take(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for group in optimizer.param_groups:
            taken.update({names[p]: p.grad.detach().clone() for p in group["params"] if p.grad is not None})

    inner = step.optimizer.optimizers if isinstance(step.optimizer, CombinedOptimizer) else [step.optimizer]
    hooks = [each.register_step_pre_hook(take) for each in inner]
    try:
        yield taken
    finally:
        for hook in hooks:
            hook.remove()


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_copied(value) for value in tree]
    if isinstance(tree, Tensor):
        return tree.detach().clone(memory_format=torch.contiguous_format)  # as a file holds it
    assert tree is None or isinstance(tree, (bool, int, float, str)), f"a checkpoint cannot hold {type(tree)}"
    return tree


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
