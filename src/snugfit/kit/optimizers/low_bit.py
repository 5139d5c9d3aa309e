"""AdamW with states of 4 bits by torchao, and of 8 by bitsandbytes, made to behave as any torch optimizer does.

Groups have rates that are numbers, states that are saved are plain tensors, and fake parameters are taken. Two names are torchao's
own: `_new_buffer` and `_subclass_zeros`; tests/unit/kit/optimizers/test_low_bit.py tells when one moves.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.kit.optimizers.blockwise import in_blocks, on_parts, part_of, parts_of, spread
from snugfit.kit.optimizers.library_optimizer import checked, eager, refuse_sparse, require
from snugfit.kit.optimizers.low_bit_bitsandbytes import bitsandbytes_class
from snugfit.kit.sharded_tensors import is_sharded, of_part, own_part, sharded_like
from snugfit.system.messages import importing_torchao


def torchao_adamw(
    groups: list[ParameterGroup], technique: str, min_size: int, **settings: Any
) -> torch.optim.Optimizer:
    """Return torchao's AdamW with states of 4 bits.

    Args:
        technique: whose name errors begin with.
        min_size: weights of fewer elements keep their states in the weights' own format; so do those that its blocks
            of 128 elements do not divide.
        settings: `lr`, `betas`, `eps` and `weight_decay`.
    Raises:
        SettingError: a weight is in float64; in a step, a gradient is sparse.
        MissingExtra: torchao is not installed.
    """
    return checked(_torchao_class()(groups, technique, min_size, **settings), technique)


def bitsandbytes_adamw(
    groups: list[ParameterGroup], technique: str, min_size: int, paged: bool = False, **settings: Any
) -> torch.optim.Optimizer:
    """Return bitsandbytes' AdamW with states of 8 bits, in blocks of 256; arguments and errors as those of `torchao_adamw`.

    Args:
        paged: states lie in memory that CUDA moves to the host when the device is full.
    """
    return checked(bitsandbytes_class()(groups, technique, min_size, paged, **settings), technique)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return bytes of the states that grow with the weights, on this rank: those shared by all weights, such as maps of codes, are left out."""
    return sum(_bytes_of(state) for state in optimizer.state_dict()["state"].values())


def _bytes_of(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(_bytes_of(entry) for name, entry in value.items() if not str(name).startswith("qmap"))
    return own_part(value).nbytes if isinstance(value, Tensor) and value.ndim else 0


@functools.cache
def _torchao_class() -> Any:
    require("torchao")
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with importing_torchao():
        from torchao.optim import AdamW4bit, subclass_4bit

    with unset_fake_temporarily():  # the maps are made once, by reading tensors
        subclass_4bit.get_qmap_signed(), subclass_4bit.get_qmap_unsigned()
    base: Any = AdamW4bit

    class TorchaoAdamW(base):  # type: ignore[misc]
        def __init__(
            self, groups: list[ParameterGroup], technique: str, min_size: int, **settings: Any
        ) -> None:
            self.technique, self.min_size = technique, min_size
            self.owners: dict[Tensor, nn.Parameter] = {}
            super().__init__(groups, **settings)

        def add_param_group(self, param_group: ParameterGroup) -> None:
            rate = param_group.get("lr", self.defaults["lr"])
            super().add_param_group(param_group)
            self.param_groups[-1]["lr"] = rate  # of which torchao makes a tensor

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            refuse_sparse(self, self.technique)
            with on_parts(self, parts_of, _spread_moments) as self.owners, _tensor_rates(self), eager(self):
                return super().step(closure)

        def state_dict(self) -> dict[str, Any]:
            state_dict: dict[str, Any] = super().state_dict()
            of_key = self._of_key(state_dict)
            states = {
                key: {name: _plain(of_key[key], value, self.block_size) for name, value in state.items()}
                for key, state in state_dict["state"].items()
            }
            return {**state_dict, "state": states}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            of_key = self._of_key(state_dict)
            states = {
                key: {name: _whole(self, of_key[key], name, value) for name, value in state.items()}
                for key, state in state_dict["state"].items()
            }
            super().load_state_dict({**state_dict, "state": states})

        def _of_key(self, state_dict: dict[str, Any]) -> dict[int, nn.Parameter]:
            own = [parameter for group in self.param_groups for parameter in group["params"]]
            keys = [key for group in state_dict["param_groups"] for key in group["params"]]
            if len(own) != len(keys):
                raise ValueError(f"it is of {len(keys)} parameters, and there are {len(own)}")
            return dict(zip(keys, own, strict=True))

        def _new_buffer(self, p: Tensor, signed: bool) -> Tensor:
            weight = self.owners.get(p, p)
            part = own_part(p)
            if not part.numel() or not in_blocks(weight, self.min_size, self.block_size):
                return torch.zeros_like(part)
            return self.zeros_like(part, signed)

        def moment_of(self, parameter: nn.Parameter, signed: bool) -> Tensor:
            """Return a moment of zeros of a parameter's own part."""
            return self._new_buffer(parameter, signed)

        def zeros_like(self, tensor: Tensor, signed: bool) -> Tensor:
            """Return zeros of 4 bits in the shape of a tensor."""
            made: Tensor = self._subclass_zeros(tensor, signed, self.block_size)
            return made

    return TorchaoAdamW


def _plain(parameter: nn.Parameter, value: Any, block: int) -> Any:
    """Return a moment as plain tensors; the map of codes is the same for all, and is made anew."""
    part = own_part(value) if isinstance(value, Tensor) else value
    if not hasattr(part, "__tensor_flatten__"):
        return value
    parts = {name: getattr(part, name) for name in part.__tensor_flatten__()[0] if name != "qmap"}
    if not is_sharded(parameter):
        return parts
    return {name: _spread(each, parameter, name, block) for name, each in parts.items()}


def _spread(part: Tensor, parameter: nn.Parameter, name: str, block: int) -> Tensor:
    return spread(part, parameter, block, per_block=1 if name == "scale" else block // 2)


def _whole(optimizer: Any, parameter: nn.Parameter, name: str, value: Any) -> Any:
    """Return the moment `name` of an optimizer from what its `state_dict` made of it."""
    if not isinstance(value, Mapping):
        return value
    signed = name == "exp_avg"
    if not is_sharded(parameter):
        return _filled(optimizer.moment_of(parameter, signed), value)
    if not in_blocks(parameter, optimizer.min_size, optimizer.block_size):  # few bits elsewhere, 32 here
        unsharded = torch.empty(parameter.shape, device=parameter.device)
        gathered = _filled(optimizer.zeros_like(unsharded, signed), value)
        return sharded_like(parameter, gathered.dequantize().to(parameter.dtype))
    moment = optimizer.moment_of(parameter, signed)
    if moment.numel():
        parts = {
            each: _spread(getattr(moment, each), parameter, each, optimizer.block_size) for each in value
        }
        _filled(moment, {each: part_of(tensor, parts[each]) for each, tensor in value.items()})
    return of_part(moment, parameter)


def _filled(moment: Any, parts: Mapping[str, Tensor]) -> Any:
    """Return a moment with these parts.

    Raises:
        ValueError: it has others.
    """
    for part, tensor in parts.items():
        into = getattr(moment, part, None)
        if into is None or into.numel() != tensor.numel():
            raise ValueError(f"a moment of it does not fit a weight of the shape {tuple(moment.shape)}")
        into.copy_(tensor.reshape(into.shape))
    return moment


def _spread_moments(state: dict[str, Any], weight: Tensor) -> dict[str, Any]:
    """Return the first state of a part, its moments as sharded tensors."""
    return {
        name: of_part(value, weight) if isinstance(value, Tensor) and value.ndim else value
        for name, value in state.items()
    }


@contextmanager
def _tensor_rates(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Temporarily make each group's rate a tensor, as torchao wants it."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.tensor(rate, dtype=torch.float32)
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
