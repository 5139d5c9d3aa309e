"""The optimizer on the host: its states and its step in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from snugfit.core.one_by_one import ShadowOptimizer, standing_in
from snugfit.core.parameters import ParameterGroup
from snugfit.core.read import is_fake
from snugfit.core.technique import (
    Card,
    Context,
    Family,
    MakeOptimizer,
    Seams,
    Stage,
    Technique,
)

HOST = torch.device("cpu")


class OffloadedOptimizer(ShadowOptimizer):
    """Steps an optimizer on the host: a parameter and its gradient come there, are stepped, and the parameter goes back.

    The model's weights are the truth, and read anew in each step: whatever else moves them is kept. Copies are asynchronous
    and from pinned memory on CUDA; the next parameter comes while one is stepped. The host holds the states, and two
    parameters with their gradients.

    Args:
        optimizer: made of the parameters, without a state yet.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = OffloadedOptimizer(torch.optim.AdamW(model.parameters()))
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> {value.device.type for state in optimizer.state.values() for value in state.values()}
    {'cpu'}

    Source: Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload), without its delayed update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, HOST)

    def lend(self, parameters: Iterable[nn.Parameter]) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        arriving = ((parameter, _Coming.of(parameter)) for parameter in parameters)
        here = next(arriving, None)
        while here is not None:
            following = next(arriving, None)  # on its way while this one is stepped
            parameter, coming = here
            stand_in = standing_in(self.shadows[parameter], *coming.arrived())
            yield self.shadows[parameter], stand_in
            self.give_back(parameter, stand_in)
            here = following
            del coming, stand_in  # or they would be there beside the next ones

    def give_back(self, parameter: nn.Parameter, stepped: Tensor) -> None:
        """Have a parameter where it was, as it was stepped."""
        parameter.copy_(stepped, non_blocking=True)


class _Coming(NamedTuple):
    """A parameter and its gradient on their way to the host."""

    weight: Tensor
    gradient: Tensor
    event: torch.cuda.Event | None

    @classmethod
    def of(cls, parameter: nn.Parameter) -> _Coming:
        assert parameter.grad is not None
        # from CUDA these are pinned, from torch's cache of such memory, which waits for copies that still read it
        weight, gradient = (
            tensor.to(HOST, non_blocking=True, copy=True) for tensor in (parameter.detach(), parameter.grad)
        )
        if parameter.device.type != "cuda" or is_fake(parameter):
            return cls(weight, gradient, None)
        event = torch.cuda.Event()
        event.record()
        return cls(weight, gradient, event)

    def arrived(self) -> tuple[Tensor, Tensor]:
        if self.event is not None:
            self.event.synchronize()
        return self.weight, self.gradient


@dataclass(frozen=True)
class OptimizerOffload(Technique):
    """Keep the optimizer's states in host memory and step there; the device has weights, gradients and activations."""

    card: ClassVar[Card] = Card(
        name="optimizer_offload",
        summary="Keeps the optimizer's states in host memory and makes its step there.",
        family=Family.PLACEMENT,
        source="Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload)",
        seams=("stepping",),
        stages=(Stage.SHADOW,),
        conflicts={
            "schedule_free": "it works out the weights to evaluate from its own state beside the weights it steps, which are on "
            "the host for the step alone. Remove one, or use adamw.",
        },
        saves_memory=True,
        cost="saves the states: 8 bytes a parameter with AdamW; 12 bytes a parameter over the bus an update, and a step on the host",
        use_when="states do not fit the device and windows are large, so that an update is long anyway",
    )

    def seams(self, context: Context) -> Seams:
        def stepping(make: MakeOptimizer) -> MakeOptimizer:
            def offloaded(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
                return OffloadedOptimizer(make(groups))

            return offloaded

        return Seams(stepping=stepping)
