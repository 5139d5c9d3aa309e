"""Optimizers whose states lie in blocks of elements, on weights that are spread over devices: each rank steps its own rows.

The blocks are those of the whole weight, so that any number of ranks rounds alike: a weight takes part where each rank's rows are
whole blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.kit.sharded_tensors import is_sharded, of_part, own_part, sharded_like

State = dict[str, Any]


def rows_of_blocks(weight: Tensor, block: int) -> int | None:
    """Return how many rows of a sharded weight are whole blocks, the fewest; None where some rank's rows are not."""
    sharded: Any = weight
    sizes = sharded.device_mesh.shape
    ranks = math.prod(size for size, place in zip(sizes, sharded.placements, strict=True) if place.is_shard())
    rows = weight.shape[0]
    unit = block // math.gcd(weight.numel() // rows, block)
    each = -(-rows // ranks)  # the last ranks may have fewer, or none
    return unit if rows % unit == 0 and each % unit == 0 else None


def spread(part: Tensor, weight: Tensor, block: int, per_block: int) -> Tensor:
    """Return what this rank keeps of the blocks of a sharded weight, spread as the weight is: one row for each unit of rows.

    Args:
        per_block: elements that are kept of a block.
    """
    unit = rows_of_blocks(weight, block)
    assert unit is not None
    rows = weight.shape[0] // unit
    width = weight.numel() // rows // block * per_block
    return of_part(part.reshape(-1, width), weight, (rows, width))


def part_of(values: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part, in one dimension, of what `spread` gave or of the whole of it, of any shape; `like` is as `spread` gives it.

    Raises:
        ValueError: it has another number of elements.
    """
    if values.numel() != like.numel():
        raise ValueError(f"it keeps {values.numel()} elements, and a weight has {like.numel()}")
    return own_part(
        values if is_sharded(values) else sharded_like(like, values.reshape(like.shape))
    ).flatten()


@contextmanager
def on_parts(
    optimizer: Optimizer, to_part: Callable[[State], State], from_part: Callable[[State, Tensor], State]
) -> Iterator[dict[Tensor, nn.Parameter]]:
    """Temporarily make the sharded parameters of an optimizer this rank's parts of them, with its gradients and states.

    Args:
        to_part: a state in tensors of the part alone, in the same memory.
        from_part: what is kept of the first state of a part, beside the whole parameter: sharded tensors, so that a checkpoint has all.
    Returns:
        The parameter of each part.
    """
    owners: dict[Tensor, nn.Parameter] = {}
    before: dict[Tensor, State] = {}
    state = optimizer.state

    def lend(parameter: nn.Parameter) -> nn.Parameter:
        if not is_sharded(parameter):
            return parameter
        part = nn.Parameter(own_part(parameter), parameter.requires_grad)
        part.grad = None if parameter.grad is None else own_part(parameter.grad)
        if parameter in state:
            before[part] = state.pop(parameter)
            state[part] = to_part(before[part])
        owners[part] = parameter
        return part

    given = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = [lend(parameter) for parameter in group["params"]]
    try:
        yield owners
    finally:
        for group, params in zip(optimizer.param_groups, given, strict=True):
            group["params"] = params
        for part, parameter in owners.items():
            if part not in state:
                continue
            part_state, own = state.pop(part), before.get(part)
            state[parameter] = from_part(part_state, parameter) if own is None else _written(part_state, own)
        owners.clear()  # the parts have gradients, which nobody may keep


def _written(state: State, before: State) -> State:
    """Return a state whose sharded tensors have been written to in their parts."""
    return {name: before[name] if is_sharded(before.get(name)) else value for name, value in state.items()}


def in_blocks(weight: Tensor, min_size: int, block: int) -> bool:
    """Return whether a weight, all of it, is large enough for states of few bits, in whole blocks on each rank that has a part."""
    if weight.numel() < min_size:
        return False
    return rows_of_blocks(weight, block) is not None if is_sharded(weight) else weight.numel() % block == 0


def parts_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of a sharded weight in this rank's parts."""
    return {name: own_part(value) if isinstance(value, Tensor) else value for name, value in state.items()}
