"""Schedule-free AdamW: the gradient is taken beside a running average, which is what is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.progress import LENGTH, is_length, number_of_updates
from snugfit.core.schedule import known_total, warmup_factor
from snugfit.core.technique import Card, Context, Family, Rate, Seams, Technique
from snugfit.errors import MissingExtra
from snugfit.kit.averages import swapped
from snugfit.kit.batch_norm import NormStatistics
from snugfit.kit.optimizers.foreach import lerp


def averages_of(trained: Sequence[Tensor], fast: Sequence[Tensor], beta: float) -> list[Tensor]:
    """Return the average x in which `trained` = (1 - beta) · `fast` + beta · x; new tensors, in float32 at least.

    >>> averages_of([torch.tensor([1.0])], [torch.tensor([4.0])], beta=0.5)
    [tensor([-2.])]
    """
    wide = [tensor.detach() if tensor.dtype.itemsize >= 4 else tensor.detach().float() for tensor in trained]
    targets = [target.to(tensor.dtype) for tensor, target in zip(wide, fast, strict=True)]
    return lerp(wide, targets, 1 - 1 / beta)


@dataclass(frozen=True)
class ScheduleFree(Technique):
    """AdamW whose average takes the place of a falling learning rate; vectors are not decayed.

    The rate rises over `warmup` and then stays, so no schedule stands beside it. What is evaluated and saved is the
    average; batch norm's statistics are estimated anew for it, from the first `norm_windows` training windows of an epoch.
    """

    learning_rate: float = 2.5e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup: float = 0.0
    norm_windows: int = 50

    card: ClassVar[Card] = Card(
        name="schedule_free",
        summary="AdamW with an average in place of a schedule: the run may end at any time.",
        aliases=("AdamWScheduleFree",),
        family=Family.LEARNING,
        source="Defazio et al. 2024, arXiv:2405.15682; AdamWScheduleFree of the library schedulefree",
        seams=("optimizer", "schedule", "weights", "settle"),
        conflicts={
            "lookahead": "lookahead moves the weights, and the average is worked out from where the optimizer left them. Remove one."
        },
        cost="two states a parameter, as AdamW; with batch norm, forwards of norm_windows windows an evaluation",
        use_when="the length of the run is open; rates of 1 to 10 times AdamW's, with a warm-up of 0.05",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        betas = len(self.betas) == 2 and 0 < self.betas[0] < 1 and 0 <= self.betas[1] < 1
        self.require("betas", betas, "two numbers below 1, the first above 0 and the second 0 or above")
        self.require_not_negative("weight_decay")
        self.require("warmup", is_length(self.warmup), LENGTH)
        self.require("norm_windows", self.norm_windows >= 0, "zero or positive")

    @classmethod
    def example(cls) -> Self:
        # some gradients are nothing but rounding, such as that of a bias before a norm: epsilon keeps them small
        return cls(learning_rate=0.01, epsilon=1e-6, weight_decay=0.1, warmup=2, norm_windows=2)

    def seams(self, context: Context) -> Seams:
        total = known_total(self.card.name, context, needed=0 < self.warmup < 1)
        warmup = number_of_updates(self.warmup, total)
        state = _State(context, self)

        def schedule(updates: int, _group: Mapping[str, Any]) -> Rate:
            return Rate(warmup_factor(updates, warmup))

        return Seams(
            optimizer=state.make_optimizer,
            schedule=schedule,
            weights=state.swapped_in,
            settle=state.settle,
            state=state,
        )


class _State:
    """The library keeps y in the model and z in its state, and turns y into x and back, which rounds; here x is a copy."""

    def __init__(self, context: Context, settings: ScheduleFree) -> None:
        self._settings = settings
        self._norms = NormStatistics(context.device, settings.norm_windows)
        self._optimizer: torch.optim.Optimizer | None = None

    def make_optimizer(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        """Return AdamW without a schedule, of the library.

        Raises:
            MissingExtra: schedulefree is not installed.
        """
        try:
            from schedulefree import AdamWScheduleFree
        except ImportError as error:
            raise MissingExtra("schedulefree", "optimizers") from error
        settings = self._settings
        optimizer = AdamWScheduleFree(
            groups,
            lr=settings.learning_rate,
            betas=(settings.betas[0], settings.betas[1]),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )
        optimizer.train()
        _leave_gradients(optimizer)
        self._optimizer = optimizer
        made: torch.optim.Optimizer = optimizer
        return made

    def settle(self, model: nn.Module, passes: Iterator[None]) -> None:
        self._norms.estimate(model, passes)

    def swapped_in(self, model: nn.Module) -> AbstractContextManager[None]:
        assert self._optimizer is not None
        trained, averages = self._norms.buffers_and_estimates(model)
        for group in self._optimizer.param_groups:
            assert group["train_mode"], "the model has y, and never x but for a while"
            # what has had no gradient yet is its own average
            moved = [p for p in group["params"] if "z" in self._optimizer.state.get(p, {})]
            fast = [self._optimizer.state[p]["z"] for p in moved]
            trained += moved
            averages += averages_of(moved, fast, group["betas"][0])
        return swapped(trained, averages)

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._norms.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms.load_state_dict(state["norms"])


def _leave_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer work on copies: the library writes its steps over the gradients, which others may look at."""
    own: list[tuple[Tensor, Tensor]] = []

    def before(*_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        own[:] = [(parameter, parameter.grad) for parameter in parameters]
        for parameter, gradient in own:
            parameter.grad = gradient.clone()

    def after(*_: Any) -> None:
        for parameter, gradient in own:
            parameter.grad = gradient
        own.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
