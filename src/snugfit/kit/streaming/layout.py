"""The frozen weights of a block, and how they lie in one piece of memory.

A weight that bitsandbytes has quantised is several tensors: the packed numbers, and what its `quant_state` holds beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.scalar_reads import is_fake
from snugfit.errors import SettingError
from snugfit.kit.placement import set_data_

ALIGNMENT = 256
"""Bytes: where CUDA's allocator lets tensors begin, so that kernels find streamed ones as they find others."""


@dataclass(frozen=True)
class Place:
    """The place of a tensor in a piece of memory; `stride` as it was, so that kernels add up in the same order."""

    offset: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def within(self, memory: Tensor) -> Tensor:
        """Return the tensor, without a copy; writing to `memory` does not count as a change of it.

        >>> place = Place(256, torch.float32, torch.Size([2]), (1,))
        >>> place.within(torch.zeros(264, dtype=torch.uint8))
        tensor([0., 0.])
        """
        flat = memory[self.offset : self.offset + self.nbytes].view(self.dtype)
        return flat.as_strided(self.shape, self.stride).data


@dataclass
class Weight:
    """A frozen parameter, the modules of a block that hold it, and where its tensors lie in the block's memory."""

    name: str
    parameter: nn.Parameter
    holders: list[tuple[nn.Module, str]]
    places: dict[str, Place] = field(default_factory=dict)

    def attach(self, memory: Tensor) -> None:
        """Let the modules compute with what lies in `memory`."""
        made = _like(self.parameter, {part: place.within(memory) for part, place in self.places.items()})
        for module, attribute in self.holders:
            setattr(module, attribute, made)

    def detach(self) -> None:
        """Give the modules their own parameter back."""
        for module, attribute in self.holders:
            setattr(module, attribute, self.parameter)


def tensors_of(parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return the tensors that a weight consists of: "" is what it holds itself.

    >>> list(tensors_of(nn.Parameter(torch.ones(2))))
    ['']
    """
    tensors = {"": parameter.detach()}  # which counts its changes with the parameter
    for prefix, state in _states(parameter):
        tensors |= {f"{prefix}{name}": part for name, part in vars(state).items() if isinstance(part, Tensor)}
    return tensors


def set_tensors_(parameter: nn.Parameter, tensors: Mapping[str, Tensor]) -> None:
    """Let a weight consist of these tensors from now on."""
    set_data_(parameter, tensors[""])
    for prefix, state in _states(parameter):
        for name in [name for name, part in vars(state).items() if isinstance(part, Tensor)]:
            setattr(state, name, tensors[f"{prefix}{name}"])


def frozen_weights(model: nn.Module, blocks: Mapping[str, nn.Module]) -> dict[str, list[Weight]]:
    """Return the frozen weights of each block that nothing outside of it holds.

    Raises:
        SettingError: a weight is in a format that cannot be taken to pieces.
    """
    block_of: dict[int, str] = {}
    for block, module in blocks.items():
        for inner in module.modules():
            shared = block_of.get(id(inner), block) != block
            block_of[id(inner)] = "" if shared else block
    weight_of: dict[int, Weight] = {}
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        for attribute, parameter in vars(module)["_parameters"].items():
            if parameter is None or parameter.requires_grad or parameter.numel() == 0:
                continue
            weight = weight_of.setdefault(
                id(parameter), Weight(f"{name}.{attribute}".lstrip("."), parameter, [])
            )
            weight.holders.append((module, attribute))
            owners.setdefault(id(parameter), set()).add(block_of.get(id(module), ""))
    weights: dict[str, list[Weight]] = {block: [] for block in blocks}
    for key, weight in weight_of.items():
        (owner, *others) = owners[key]
        if owner and not others:
            _check_format(weight)
            weights[owner].append(weight)
    return weights


def lay_out(weights: list[Weight]) -> int:
    """Give every tensor of the weights its place; returns the bytes of the whole."""
    end = 0
    for weight in weights:
        for part, tensor in tensors_of(weight.parameter).items():
            stride = torch.empty_like(tensor, device="meta").stride()  # dense, and else as it is
            weight.places[part] = Place(end, tensor.dtype, tensor.shape, stride)
            end += aligned(weight.places[part].nbytes)
    return end


def aligned(nbytes: int) -> int:
    """Return the next multiple of the alignment.

    >>> aligned(1), aligned(256)
    (256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _states(parameter: nn.Parameter) -> Iterator[tuple[str, Any]]:
    """Yield what bitsandbytes keeps beside a quantised weight: its scales, and the scales of those."""
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        yield "", state
        if getattr(state, "state2", None) is not None:
            yield "state2.", state.state2


def _like(parameter: nn.Parameter, tensors: Mapping[str, Tensor]) -> nn.Parameter:
    state: Any = getattr(parameter, "quant_state", None)
    if state is None:
        return nn.Parameter(tensors[""], requires_grad=False)
    weight: Any = copy.copy(parameter)
    weight.quant_state = copy.copy(state)
    if getattr(state, "state2", None) is not None:
        weight.quant_state.state2 = copy.copy(state.state2)
    set_tensors_(weight, tensors)
    like: nn.Parameter = weight
    return like


def _check_format(weight: Weight) -> None:
    parameter = weight.parameter
    if type(parameter) is nn.Parameter or is_fake(parameter) or next(_states(parameter), None) is not None:
        return
    raise SettingError(
        "weight_streaming.blocks",
        f"'{weight.name}' is {type(parameter).__name__}, of which only its own library knows what belongs to it",
        "Stream plain frozen weights or 4-bit ones of bitsandbytes, or leave the block out.",
    )
