"""Gyro dropout: masks of dropout come from a few that are drawn once, so that the same subnetworks train again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.random import derive_seed
from snugfit.core.scalar_reads import is_fake
from snugfit.core.technique import Card, Context, Family, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_modules
from snugfit.kit.patched_forward import replaced_forward
from snugfit.system.device_copies import to_device


def subnetworks_of_rows(rows: int, subnetworks: int, at_once: int, source: torch.Generator) -> Tensor:
    """Return the subnetwork of each row of a window: some that are drawn, each for as many neighbours; int64, shape (rows,).

    >>> subnetworks_of_rows(6, subnetworks=4, at_once=2, source=torch.Generator().manual_seed(0))
    tensor([0, 0, 0, 1, 1, 1])
    """
    drawn = torch.randperm(subnetworks, generator=source)[:at_once]
    return drawn[torch.arange(rows) * len(drawn) // rows]


def draw_masks(subnetworks: int, width: int, rate: float, seed: int) -> Tensor:
    """Return which features each subnetwork has: bool, shape (subnetworks, width)."""
    return torch.rand(subnetworks, width, generator=torch.Generator().manual_seed(seed)) >= rate


class _Masks:
    """The masks of one dropout module, a function of the run's seed and the module's name; made when the width is known."""

    def __init__(self, subnetworks: int, rate: float, seed: int) -> None:
        self._subnetworks, self._rate, self._seed = subnetworks, rate, seed
        self._drawn: dict[tuple[int, torch.device], Tensor] = {}

    def of(self, features: Tensor) -> Tensor:
        key = features.shape[-1], features.device
        masks = self._drawn.get(key)
        if masks is None:
            masks = draw_masks(self._subnetworks, key[0], self._rate, self._seed).to(key[1])
            if not is_fake(masks):
                self._drawn[key] = masks
        return masks


@dataclass(frozen=True)
class GyroDropout(Technique):
    """Draw the masks of dropout once for the run, and train some of these subnetworks in each window."""

    rate: float = 0.5
    subnetworks: int = 256
    at_once: int = 16
    dropouts: tuple[str, ...] = ()

    card: ClassVar[Card] = Card(
        name="gyro_dropout",
        summary="Takes the masks of dropout from a few subnetworks drawn once, so that each of them is trained well.",
        family=Family.LEARNING,
        source="Lee et al. 2022, Gyro Dropout, MLSys 2022; settings as composer's GyroDropout (sigma, tau)",
        seams=("batch", "modules"),
        stages=(Stage.DRAW, Stage.COMPUTE),
        cost="that of dropout; subnetworks * width bytes for each dropout module",
        use_when="nets with dropout, trained for many updates",
    )

    def __post_init__(self) -> None:
        self.require("rate", 0 < self.rate < 1, "in (0, 1)")
        self.require("subnetworks", self.subnetworks >= 2, "at least 2")
        self.require("at_once", 1 <= self.at_once <= self.subnetworks, "at least 1 and at most subnetworks")

    @classmethod
    def example(cls) -> Self:
        return cls(rate=0.3, subnetworks=64, at_once=4)

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        if not self._modules(model):
            raise SettingError(
                "gyro_dropout.dropouts", "has nothing to change: the model has no nn.Dropout", "Remove it."
            )
        return model

    def seams(self, context: Context) -> Seams:
        name = self.card.name
        modules_by_name = self._modules(context.model)
        masks = {
            each: _Masks(self.subnetworks, self.rate, derive_seed(context.seed, name, each))
            for each in modules_by_name
        }

        def batch(window: Batch, moment: Moment) -> Batch:
            drawn = subnetworks_of_rows(window.total, self.subnetworks, self.at_once, moment.generator())
            return window.with_extras(**{name: to_device(window.own(drawn), context.device)})

        @contextmanager
        def modules(part: Batch) -> Iterator[None]:
            subnetworks = part.extras.get(name)
            if subnetworks is None:  # scored, not trained
                yield
                return
            with ExitStack() as stack:
                for each, module in modules_by_name.items():
                    forward = partial(self._dropped, each, module, masks[each], subnetworks)
                    stack.enter_context(replaced_forward(module, forward))
                yield

        return Seams(batch=batch, modules=modules)

    def _modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the dropout modules that are changed, by name."""
        wanted = find_modules(model, self.dropouts, "gyro_dropout.dropouts", nn.Dropout)
        modules = {name: module for name, module in model.named_modules() if type(module) is nn.Dropout}
        return {name: module for name, module in modules.items() if name in wanted or not self.dropouts}

    def _dropped(
        self, name: str, module: nn.Module, masks: _Masks, subnetworks: Tensor, input: Tensor
    ) -> Tensor:
        """Return the features of each row that its subnetwork has, divided by their part."""
        if not module.training:
            return input
        if input.ndim not in (2, 3) or input.shape[0] != subnetworks.shape[0]:
            raise SettingError(
                "gyro_dropout.dropouts",
                f"'{name}' works on {tuple(input.shape)} for {subnetworks.shape[0]} rows, and a subnetwork is of the features (rows, width) or "
                "(rows, tokens, width)",
                "Name the dropout modules that see such.",
            )
        has = masks.of(input)[subnetworks]
        return torch.where(has if input.ndim == 2 else has.unsqueeze(1), input / (1 - self.rate), 0.0)
