"""Each device keeps a part of the weights, gradients and optimizer states, and gathers a block while it computes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from snugfit.core.blocks import repeated_blocks
from snugfit.core.card import Sharing
from snugfit.core.placing import place_, set_data_
from snugfit.core.sharded import whole
from snugfit.core.skeleton import fill_, skeleton
from snugfit.strategies.base import SeveralRanks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule


@dataclass
class FullyShard(SeveralRanks):
    """Torch's FSDP2 around each repeated block and around the rest of the model. Gradients are added up over ranks.

    Args:
        mesh: one axis, over which everything is sharded, or two: copies of the model × ranks that share one (hybrid). None
            stands for all ranks on one axis.
        reshard_after_forward: whether a block's weights are given up after its forward and gathered again for its backward
            (ZeRO stage 3); else they stay until the window's last backward (stage 2).
        cpu_offload: whether the sharded weights, gradients and optimizer states lie in host memory.
        computes_in: what weights are gathered and computed in; None leaves them as they are.
        reduce_each: whether every micro-batch adds its gradients to the sharded ones, which sends them as often and never has them
            whole, as what is sharded may be too large for; else the last one does, and a device keeps all of them meanwhile. Copies
            of the model exchange on the last in either case.

    Source: Zhao et al. 2023, arXiv:2304.11277; Rajbhandari et al. 2020, arXiv:1910.02054.
    """

    mesh: DeviceMesh | None = None
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    computes_in: torch.dtype | None = None
    reduce_each: bool = True
    sharing: Sharing | None = field(default=Sharing.SHARDS, init=False)
    _skeleton: nn.Module | None = field(default=None, init=False, repr=False)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Shard the model in place, and move it to the device of the mesh block by block, so that it is never whole there.

        Its parameters become DTensors, each with this rank's rows.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            CPUOffloadPolicy,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
        )

        if dist.get_backend() != "fake":  # the planner's, which delivers nothing, and would count it
            self._skeleton = skeleton(model)
        mesh = self.mesh or init_device_mesh(next(model.parameters()).device.type, (self.world_size,))
        device = mesh.device_type
        # memory can be pinned for an accelerator only
        offload = CPUOffloadPolicy(pin_memory=device != "cpu") if self.cpu_offload else OffloadPolicy()
        precision = MixedPrecisionPolicy(param_dtype=self.computes_in)
        blocks = _units(model)
        for module in (*blocks.values(), model):
            if any(each.device.type != device for each in module.parameters()):
                place_(module, device, blocks if module is model else ())
            for parameter in module.parameters():
                if not parameter.is_contiguous():  # FSDP2 takes no other
                    set_data_(parameter, parameter.detach().contiguous())
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=self.reshard_after_forward,
                mp_policy=precision,
                offload_policy=offload,
                ignored_params=_frozen_numbers(module),
            )
        for sharded in _fsdp_modules(model):  # the step divides sums by the weight of the whole window, once
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        return model

    def spread(self, model: nn.Module) -> nn.Module:
        """Spread a model that does not train, of which no weight stays behind a forward."""
        return replace(self, reshard_after_forward=True).wrap(model)

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Around forward and backward: before the last micro-batch, gradients are not exchanged, or only within a node.

        In stage 2 weights are gathered once for all micro-batches.
        """
        sharded = cast("FSDPModule", model)
        exchange = sharded.set_requires_all_reduce if self.reduce_each else sharded.set_requires_gradient_sync
        exchange(last)
        sharded.set_reshard_after_backward(self.reshard_after_forward or last)
        try:
            with self._outside_stays(sharded):
                yield
        finally:
            exchange(True)
            sharded.set_reshard_after_backward(True)

    @contextmanager
    def score(self, model: nn.Module) -> Iterator[None]:
        """Around forwards that no backward follows, and what is made of them; on exit all weights are given up."""
        sharded = cast("FSDPModule", model)
        try:
            with self._outside_stays(sharded):
                yield
        finally:
            for module in _fsdp_modules(model):
                module.reshard()

    @contextmanager
    def _outside_stays(self, model: FSDPModule) -> Iterator[None]:
        """Within, what is not in a block stays after the forward, where a loss may compute with it, such as with the head's weight."""
        model.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            model.set_reshard_after_forward(self.reshard_after_forward, recurse=False)

    def whole(self, model: nn.Module) -> nn.Module | None:
        """A copy of the model with all of its weights in the first rank's host memory, one after the other; None on the other ranks."""
        assert self._skeleton is not None
        parameters: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            gathered = whole(parameter)  # all ranks send
            if self.rank == 0:
                parameters[name] = gathered.cpu()
        if self.rank != 0:
            return None
        found = copy.deepcopy(self._skeleton)
        fill_(found, {**parameters, **dict(model.named_buffers())})
        return found

    def add_up_shards(self, value: Tensor) -> Tensor:
        """Sum a scalar of this rank's gradients over the ranks that have other ones."""
        return self.add_up([value])[0]


def _fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _units(model: nn.Module) -> dict[str, nn.Module]:
    """The numbered blocks that hold weights of their own alone, and stand in one place. What stands beside them is gathered with the
    whole model: nobody knows whether its weights are used in its own forward only, and once."""
    holders = _holders(model)
    places = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    return {
        name: block
        for numbered, found in repeated_blocks(model, numbered_only=True).items()
        for name, block in _with_forward(numbered, found)
        if places[block] == 1 and all(holders[each] == count for each, count in _holders(block).items())
    }


def _with_forward(name: str, block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The block, or what is in it where it is a mere list: FSDP2 gathers what a forward needs."""
    if not isinstance(block, (nn.ModuleList, nn.ModuleDict)):
        yield name, block
        return
    for child, module in block.named_children():
        yield from _with_forward(f"{name}.{child}", module)


def _holders(model: nn.Module) -> Counter[nn.Parameter]:
    """How many modules hold each parameter."""
    return Counter(each for module in model.modules() for each in module.parameters(recurse=False))


def _frozen_numbers(module: nn.Module) -> set[nn.Parameter]:
    """Single numbers that do not train, such as a quantised format keeps beside a weight: FSDP2 takes none, and each rank has them."""
    return {each for each in module.parameters() if each.ndim == 0 and not each.requires_grad}
