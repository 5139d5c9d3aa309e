"""Each device keeps a part of the weights, gradients and optimizer states, and gathers a block while it computes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from snugfit.core.card import Sharing
from snugfit.core.gradient_exchange import Exchange
from snugfit.core.layers import repeated_blocks
from snugfit.core.loss_terms import LossTerms
from snugfit.errors import RunFolderError
from snugfit.kit.autograd_graph import leaves_behind, with_no_gradient_of
from snugfit.kit.mapped_tensors import in_file
from snugfit.kit.placement import place_, set_data_
from snugfit.kit.precision.autocast import casting_anew, weights_cast_again
from snugfit.kit.sharded_loading import emptied_
from snugfit.kit.sharded_tensors import is_sharded, of_part, of_rows, whole
from snugfit.kit.skeleton import fill_, skeleton
from snugfit.strategies.base import SeveralRanks
from snugfit.strategies.gathers import RoundedGather, Rounding

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
        reduces_in: what a window's gradients are added up in, over micro-batches and ranks; None for what they are computed in.
        reduce_each: whether every micro-batch adds its gradients to the sharded ones, which sends them as often and never has them
            whole, as what is sharded may be too large for; else the last one does, and a device keeps all of them meanwhile. Copies
            of the model exchange on the last in either case.

    Source: Zhao et al. 2023, arXiv:2304.11277; Rajbhandari et al. 2020, arXiv:1910.02054.
    """

    mesh: DeviceMesh | None = None
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    computes_in: torch.dtype | None = None
    reduces_in: torch.dtype | None = None
    reduce_each: bool = True
    sharing: Sharing | None = field(default=Sharing.SHARDS, init=False)
    device: torch.device | None = field(default=None, init=False, repr=False)
    copies: Sequence[nn.Parameter] = field(default=(), init=False, repr=False)
    _skeleton: nn.Module | None = field(default=None, init=False, repr=False)
    _gathered: list[nn.Parameter | None] = field(default_factory=list, init=False, repr=False)
    _rounding: Rounding = field(default_factory=Rounding, init=False, repr=False)

    def exchange_by(self, exchange: Exchange) -> None:
        """Add gradients up in another type; called before `wrap`."""
        self.reduces_in = exchange.dtype

    def part(self, weight: Tensor) -> Tensor:
        """Return the rows of a weight that this rank will have, in memory of their own."""
        assert self.mesh is not None
        axis = self.mesh.ndim - 1
        parts, place = weight.chunk(self.mesh.size(axis)), self.mesh.get_local_rank(axis)
        return (parts[place] if place < len(parts) else weight[:0]).clone()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Shard the model in place, and move it to the device of the mesh block by block, so that it is never whole there.

        All ranks start with the first one's buffers, and with its weights where they have drawn others. Parameters become DTensors, each with this rank's rows. Of those in whose places stand-ins are, these are there already.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            CPUOffloadPolicy,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
        )

        if not self.pretended:  # the planner would count it
            self._skeleton = skeleton(model)
        mesh = self.mesh or init_device_mesh(next(model.parameters()).device.type, (self.world_size,))
        copies = _left_whole(model)
        device = mesh.device_type
        self.device = torch.device(device) if self.cpu_offload else None
        # memory can be pinned for an accelerator only
        offload = CPUOffloadPolicy(pin_memory=device != "cpu") if self.cpu_offload else OffloadPolicy()
        precision = MixedPrecisionPolicy(param_dtype=self.computes_in, reduce_dtype=self.reduces_in)
        parts, blocks = emptied_(model), _units(model)
        self.take_first_([*model.buffers()])
        for module in (*blocks.values(), model):
            self._take_first_weights_(module)
            places = {each.device.type for each in module.parameters()}
            if places != {device} and "meta" not in places:  # else FSDP2 moves what there is to move
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
                ignored_params=copies.intersection(module.parameters()),
            )
        for sharded in _fsdp_modules(model):  # the step divides sums by the weight of the whole window, once
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
            self._watch(sharded, mesh)
        parameters, place = dict(model.named_parameters()), "cpu" if self.cpu_offload else device
        fill_(
            model,
            {
                name: of_part(part.to(place), parameters[name])
                if is_sharded(parameters[name])
                else of_rows(part.to(device), mesh, parameters[name].shape)
                for name, part in parts.items()
            },
        )
        self.copies = [each for each in model.parameters() if not is_sharded(each)]
        return model

    def _take_first_weights_(self, module: nn.Module) -> None:
        """Give all ranks the first one's weights where theirs differ, as those of a model that was made without a seed do."""
        whole = [each for each in module.parameters() if not is_sharded(each) and not each.is_meta]
        if self.pretended or not whole:
            return
        with torch.no_grad():
            sums = [each.detach().sum(dtype=torch.float64).item() for each in whole]
        differing = [len({*of_ranks}) > 1 for of_ranks in zip(*self.tell(sums), strict=True)]
        for parameter, differs in zip(whole, differing, strict=True):
            if differs:
                self.take_first_([parameter])

    def _watch(self, unit: FSDPModule, mesh: DeviceMesh) -> None:
        """Know the weights of a unit by what stands in their place while it computes, and gather them."""
        module = cast("nn.Module", unit)
        own = [(holder, name) for holder in _own_modules(module) for name in holder._parameters]
        first = len(self._gathered)
        self._gathered += [None] * len(own)
        places: dict[nn.Parameter, int] = {}
        for place, (holder, name) in enumerate(own):
            parameter = holder._parameters[name]
            if parameter is not None and is_sharded(parameter):
                places.setdefault(parameter, place)
        sharded = [own[place] for place in places.values()]

        def parts() -> list[Tensor]:
            return [cast("Tensor", holder._parameters[name]) for holder, name in sharded]

        gather = RoundedGather(parts, mesh.size(mesh.ndim - 1))
        unit.set_custom_all_gather(gather)  # type: ignore[arg-type]
        self._rounding.add(gather, [first + place for place in places.values()])

        def remember(*_: object) -> None:
            self._rounding.see(mesh.device_type)
            for place, (holder, name) in enumerate(own, first):
                self._gathered[place] = holder._parameters[name]

        module.register_forward_pre_hook(remember)

    def run(self, compute: Callable[[], LossTerms]) -> LossTerms:
        """Forward and loss of a micro-batch, whose backward follows.

        A weight that only other ranks' rows have reached gets a gradient of zero: FSDP2 adds up what each rank has, in its order,
        and would take the gradient of one weight for that of another.
        """
        terms = compute()
        if self.pretended:
            return terms
        here = leaves_behind(terms.values)
        in_graph = torch.tensor([each in here for each in self._gathered], dtype=torch.uint8)
        in_graph = self._rounding.agree(in_graph, partial(dist.all_reduce, op=dist.ReduceOp.MAX))
        missing = [
            each
            for each, anywhere in zip(self._gathered, in_graph.tolist(), strict=True)
            if anywhere and each is not None and each not in here
        ]
        return replace(terms, values=with_no_gradient_of(terms.values, missing)) if missing else terms

    def spread(self, model: nn.Module) -> nn.Module:
        """Spread a model that does not train, of which no weight stays behind a forward."""
        return replace(self, reshard_after_forward=True).wrap(model)

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Temporarily accumulate, around forward and backward: before the last micro-batch, gradients are not exchanged, or only within a node.

        In stage 2 weights are gathered once for all micro-batches. What autocast makes of gathered weights is not kept either.
        """
        sharded = cast("FSDPModule", model)
        exchange = sharded.set_requires_all_reduce if self.reduce_each else sharded.set_requires_gradient_sync
        exchange(last)
        sharded.set_reshard_after_backward(self.reshard_after_forward or last)
        try:
            with (
                self._outside_stays(sharded),
                casting_anew(),
                weights_cast_again(),
                self._rounding.in_force(self._gathered, last),
            ):
                yield
        finally:
            exchange(True)
            sharded.set_reshard_after_backward(True)

    @contextmanager
    def score(self, model: nn.Module) -> Iterator[None]:
        """Temporarily score, around forwards that no backward follows, and what is made of them; on exit all weights are given up."""
        sharded = cast("FSDPModule", model)
        try:
            with self._outside_stays(sharded), casting_anew():
                yield
        finally:
            for module in _fsdp_modules(model):
                module.reshard()

    @contextmanager
    def _outside_stays(self, model: FSDPModule) -> Iterator[None]:
        """Temporarily let what is not in a block stay after the forward, where a loss may compute with it, such as with the head's weight."""
        model.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            model.set_reshard_after_forward(self.reshard_after_forward, recurse=False)

    def whole(self, model: nn.Module, folder: Path) -> nn.Module | None:
        """Return a copy of the model with all of its weights, gathered one after the other, on the first rank; None on the other ranks.

        They lie in files of `folder` without a name, which are gone with them: the host needs memory for one weight.
        """
        assert self._skeleton is not None
        parameters: dict[str, Tensor] = {}
        problem: RunFolderError | None = None
        for name, parameter in model.named_parameters():
            gathered = whole(parameter)  # all ranks send, whatever becomes of it
            if self.rank == 0 and problem is None:
                try:
                    parameters[name] = in_file(gathered, folder)
                except RunFolderError as error:
                    problem = error
        if problem is not None:
            raise problem
        if self.rank != 0:
            return None
        full_model = copy.deepcopy(self._skeleton)
        fill_(full_model, {**parameters, **dict(model.named_buffers())})
        return full_model

    def any_in_forward(self, flag: bool) -> bool:
        """Return whether any rank says so: all of them gather weights for each forward, and make as many."""
        return any(self.counts(int(flag)))

    def add_up_shards(self, value: Tensor) -> Tensor:
        """Sum a scalar of this rank's gradients over the ranks that have other ones."""
        return self.add_up([value])[0]


def _fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _own_modules(unit: nn.Module) -> list[nn.Module]:
    """Return the modules of a unit that are in no other one, each once, in the order in which FSDP2 joins their weights: children first."""
    from torch.distributed.fsdp import FSDPModule

    seen: set[nn.Module] = set()

    def below(module: nn.Module) -> Iterator[nn.Module]:
        seen.add(module)
        for child in module.children():
            if child not in seen and not isinstance(child, FSDPModule):
                yield from below(child)
        yield module

    return [*below(unit)]


def _units(model: nn.Module) -> dict[str, nn.Module]:
    """Return the numbered blocks that hold weights of their own alone, and stand in one place.

    What stands beside them is gathered with the whole model: nobody knows whether its weights are used in its
    own forward only, and once.
    """
    holders = _holders(model)
    places = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    return {
        name: block
        for path, numbered in repeated_blocks(model, numbered_only=True).items()
        for name, block in _with_forward(path, numbered)
        if places[block] == 1 and all(holders[each] == count for each, count in _holders(block).items())
    }


def _with_forward(name: str, block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the block, or what is in it where it is a mere list: FSDP2 gathers what a forward needs."""
    if not isinstance(block, (nn.ModuleList, nn.ModuleDict)):
        yield name, block
        return
    for child, module in block.named_children():
        yield from _with_forward(f"{name}.{child}", module)


def _holders(model: nn.Module) -> Counter[nn.Parameter]:
    """Return how many modules hold each parameter."""
    return Counter(each for module in model.modules() for each in module.parameters(recurse=False))


def _left_whole(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that each rank has whole.

    They are those without a dimension, such as a temperature or what a quantised format keeps beside a
    weight, and trained ones of another type than most, such as norms in float32 beside weights of 16 bits.
    FSDP2 takes neither.
    """
    sizes: Counter[torch.dtype] = Counter()
    for each in model.parameters():
        if each.requires_grad:
            sizes[each.dtype] += each.numel()
    usual = max(sizes, key=lambda dtype: sizes[dtype], default=None)
    return {
        each for each in model.parameters() if each.ndim == 0 or (each.requires_grad and each.dtype != usual)
    }
