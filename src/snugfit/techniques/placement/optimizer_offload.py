"""The optimizer on the host: its states and its step in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.scalar_reads import is_fake
from snugfit.core.technique import (
    ONE_MEMORY,
    Card,
    Context,
    Family,
    MakeOptimizer,
    Seams,
    Stage,
    Technique,
)
from snugfit.kit.optimizers.one_by_one import Route, ShadowOptimizer
from snugfit.system.device_copies import COPIES_BESIDE

HOST = torch.device("cpu")


class ToHost(Route):
    """The way to the host: a parameter and its gradient come there, are stepped, and the parameter goes back.

    The model's weights are the truth, and read anew in each step: whatever else moves them is kept. Copies are asynchronous
    and from pinned memory on CUDA; the next parameter comes while one is stepped, and goes back while the next one is. The host
    holds two parameters with their gradients.
    """

    device = HOST
    looks_ahead = True

    def bring(
        self, parameters: Iterable[nn.Parameter], gradient_of: Callable[[nn.Parameter], Tensor | None]
    ) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        arriving = ((parameter, _Coming.of(parameter, gradient_of(parameter))) for parameter in parameters)
        here = next(arriving, None)
        while here is not None:
            following = next(arriving, None)  # on its way while this one is stepped
            parameter, coming = here
            weight, gradient = coming.arrived()
            yield parameter, weight, gradient
            self.give_back(parameter, weight)
            here = following
            del coming, weight, gradient  # or they would be there beside the next ones

    def give_back(self, parameter: nn.Parameter, stepped: Tensor) -> None:
        """Have a parameter where it was, as it was stepped."""
        parameter.copy_(stepped, non_blocking=True)


class _Coming(NamedTuple):
    """A parameter and its gradient on their way to the host."""

    weight: Tensor
    gradient: Tensor
    event: torch.Event | None

    @classmethod
    def of(cls, parameter: nn.Parameter, gradient: Tensor | None) -> _Coming:
        assert gradient is not None
        # from CUDA these are pinned, from torch's cache of such memory, which waits for copies that still read it
        weight = parameter.detach().to(HOST, non_blocking=True, copy=True)
        gradient = gradient.to(HOST, non_blocking=True)
        if parameter.device.type not in COPIES_BESIDE or is_fake(parameter):
            return cls(weight, gradient, None)
        return cls(weight, gradient, torch.accelerator.current_stream(parameter.device).record_event())

    def arrived(self) -> tuple[Tensor, Tensor]:
        if self.event is not None:
            self.event.synchronize()
        return self.weight, self.gradient


def offloaded(optimizer: torch.optim.Optimizer) -> ShadowOptimizer:
    """Return an optimizer that makes the step of `optimizer` on the host, where its states are.

    Args:
        optimizer: made of the parameters, without a state yet; or one that steps them in another type.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = offloaded(torch.optim.AdamW(model.parameters()))
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> {value.device.type for state in optimizer.state.values() for value in state.values()}
    {'cpu'}

    Source: Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload), without its delayed update.
    """
    shadow = optimizer if isinstance(optimizer, ShadowOptimizer) else ShadowOptimizer(optimizer)
    shadow.step_by(ToHost())
    return shadow


@dataclass(frozen=True)
class OptimizerOffload(Technique):
    """Keep the optimizer's states in host memory and step there; the device has weights, gradients and activations."""

    card: ClassVar[Card] = Card(
        name="optimizer_offload",
        summary="Keeps the optimizer's states in host memory and makes its step there.",
        aliases=("ZeRO-Offload", "CPU offload of the optimizer"),
        family=Family.PLACEMENT,
        source="Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload)",
        seams=("stepping",),
        stages=(Stage.PLACE,),
        conflicts={
            "schedule_free": "it works out the weights to evaluate from its own state beside the weights it steps, which are on "
            "the host for the step alone. Remove one, or use adamw.",
        },
        not_on=ONE_MEMORY,
        saves_memory=True,
        cost="saves the states: 8 bytes a parameter with AdamW; 12 bytes a parameter over the bus an update, and a step on the host",
        use_when="states do not fit the device and windows are large, so that an update is long anyway",
    )

    def seams(self, context: Context) -> Seams:
        def stepping(make: MakeOptimizer) -> MakeOptimizer:
            def on_host(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
                return offloaded(make(groups))

            return on_host

        return Seams(stepping=stepping)
