"""bitsandbytes' AdamW with states of 8 bits, made to behave as any torch optimizer does.

Weights may be fake, lie in memory in any way, or be spread over devices; states that are saved are plain or sharded tensors. `fill_qmap`,
`get_config`, `get_state_buffer` and `update_step` are the library's own; tests/unit/kit/optimizers/test_low_bit.py tells when one moves.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.scalar_reads import is_fake
from snugfit.kit.optimizers.blockwise import in_blocks, on_parts, part_of, parts_of, rows_of_blocks, spread
from snugfit.kit.optimizers.library_optimizer import eager, refuse_sparse, require
from snugfit.kit.sharded_tensors import is_sharded, of_part, own_part, sharded_like
from snugfit.system.messages import silence_bitsandbytes

_BLOCK = 256
"""Elements of a block of bitsandbytes."""

_PAGED = 100_000
"""Elements from which bitsandbytes takes pages for a state."""

_SCALES = ("absmax1", "absmax2")


@functools.cache
def bitsandbytes_class() -> Any:
    """Return the optimizer's class; made when it is asked for, as the library is imported then."""
    require("bitsandbytes")
    silence_bitsandbytes()
    from bitsandbytes.optim import AdamW8bit

    base: Any = AdamW8bit

    class BitsandbytesAdamW(base):  # type: ignore[misc]
        def __init__(
            self,
            groups: list[ParameterGroup],
            technique: str,
            min_size: int,
            paged: bool,
            **settings: Any,
        ) -> None:
            self.technique = technique
            self.owners: dict[Tensor, nn.Parameter] = {}
            super().__init__(groups, min_8bit_size=min_size, is_paged=paged, **settings)

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            refuse_sparse(self, self.technique)
            with on_parts(self, _flat_parts, _spread_state) as self.owners, eager(self):
                return super().step(closure)

        def get_config(self, gindex: int, pindex: int, group: ParameterGroup) -> dict[str, Any]:
            config: dict[str, Any] = super().get_config(gindex, pindex, group)
            return _as_of_whole(config, self.owners.get(group["params"][pindex]))

        def update_step(self, group: ParameterGroup, p: nn.Parameter, gindex: int, pindex: int) -> None:
            state, laid_out = self.state[p], p.data
            if not p.numel():  # a rank without rows of it
                state["step"] += 1
                return
            for name in ("state1", "state2"):  # a moment that was loaded lies as its weight does
                state[name] = state[name].contiguous()
            super().update_step(group, p, gindex, pindex)
            if (
                p.data.stride() != laid_out.stride()
            ):  # the kernels go row by row, and leave a copy that lies so
                p.data = laid_out.copy_(p.data)

        def get_state_buffer(self, p: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
            weight = p.detach().contiguous()
            if self.is_paged and is_fake(weight) and weight.numel() >= _PAGED:
                # there is no CUDA to ask for pages, and the host has room for all of them
                return torch.zeros_like(weight, dtype=dtype, device="cpu")
            made: Tensor = super().get_state_buffer(weight, dtype)
            return made

        def prefetch_state(self, p: nn.Parameter) -> None:
            if not is_fake(p):
                super().prefetch_state(p)
                return
            for name in ("state1", "state2"):  # the kernel asks of them where they are
                self.state[p][name].is_paged = self.state[p][name].device != p.device

        def fill_qmap(self) -> None:
            if _is_any_fake(self.param_groups):
                self.name2qmap = {"dynamic": torch.empty(256), "udynamic": torch.empty(256)}
                return
            super().fill_qmap()

        def load_state_dict(self, state_dict: dict[str, Any], move_to_device: bool = True) -> None:
            super().load_state_dict(state_dict, move_to_device)
            _place_states(self)

    return BitsandbytesAdamW


def _as_of_whole(config: dict[str, Any], owner: nn.Parameter | None) -> dict[str, Any]:
    """Return a part's settings, which may be small where the weight is large, with 8 bits where the weight has them."""
    if owner is None:
        return config
    low = in_blocks(owner, config["min_8bit_size"], _BLOCK)
    return {**config, "min_8bit_size": 0 if low else math.inf}


def _is_any_fake(groups: list[ParameterGroup]) -> bool:
    return any(is_fake(own_part(parameter)) for group in groups for parameter in group["params"])


def _place_states(optimizer: Any) -> None:
    """Put states that were loaded where those of their weights lie."""
    for parameter, state in optimizer.state.items():
        optimizer.state[parameter] = placed = _placed_state(state, parameter)
        for name in ("state1", "state2") if optimizer.is_paged else ():  # they came back as ordinary tensors
            placed[name] = optimizer.get_state_buffer(parameter, dtype=placed[name].dtype).copy_(placed[name])


def _flat_parts(state: dict[str, Any]) -> dict[str, Any]:
    parts = parts_of(state)
    return {name: value.flatten() if name in _SCALES else value for name, value in parts.items()}


def _spread_state(state: dict[str, Any], weight: Tensor) -> dict[str, Any]:
    """Return the first state of a part, its moments and their scales as sharded tensors."""
    scales = {name: spread(state[name], weight, _BLOCK, per_block=1) for name in _SCALES if name in state}
    moments = {name: of_part(state[name], weight) for name in ("state1", "state2")}
    return {**state, **moments, **scales}


def _placed_state(state: dict[str, Any], weight: nn.Parameter) -> dict[str, Any]:
    """Return a state that was loaded, whole or sharded, as that of a weight that may be sharded; where blocks would be cut, in 32 bits."""
    if _SCALES[0] not in state:
        return state
    if not is_sharded(weight):
        return {**state, **{name: state[name].flatten() for name in _SCALES}}
    if rows_of_blocks(weight, _BLOCK) is None:
        moments = {f"state{each}": _moment(state, each, weight) for each in (1, 2)}
        return {"step": state["step"], **moments}
    blocks = own_part(weight).numel() // _BLOCK
    like = spread(state[_SCALES[0]].new_zeros(blocks), weight, _BLOCK, per_block=1)
    scales = {name: spread(part_of(state[name], like), weight, _BLOCK, per_block=1) for name in _SCALES}
    return {**sharded_like(dict.fromkeys(state, weight), state), **scales}


def _moment(state: dict[str, Any], number: int, weight: nn.Parameter) -> Tensor:
    from bitsandbytes.functional import dequantize_blockwise

    codes, scales = state[f"state{number}"], state[f"absmax{number}"].flatten()
    values: Tensor = dequantize_blockwise(codes, absmax=scales, code=state[f"qmap{number}"], blocksize=_BLOCK)
    moment: Tensor = sharded_like(weight, values.reshape(weight.shape))
    return moment
