"""Learning rates and weight decay by the names of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from snugfit.core.parameters import ParameterGroup, divided
from snugfit.core.technique import Card, Context, Family, Seams, Technique, hash_of
from snugfit.kit.module_patterns import first_pattern


@dataclass(frozen=True)
class PatternRates(Technique):
    """Factors of the learning rate by patterns of parameters' or modules' names, and patterns that are not decayed."""

    rates: Mapping[str, float]
    no_decay: tuple[str, ...] = ()

    __hash__ = hash_of

    card: ClassVar[Card] = Card(
        name="pattern_rates",
        summary="Multiplies the learning rate of parameters whose names match a pattern, or spares them weight decay.",
        aliases=("parameter groups", "no weight decay on bias and norm"),
        family=Family.LEARNING,
        source="folklore; torch's parameter groups",
        seams=("groups",),
        cost="one call of the optimizer's kernel more for each pattern",
        use_when="a new head on a pretrained model, with ten times the rate of its backbone",
    )

    def __post_init__(self) -> None:
        possible = all(0 < rate < math.inf for rate in self.rates.values())
        self.require("rates", possible, "patterns with positive factors")
        self.require("rates", len(self.rates) + len(self.no_decay) > 0, "given, unless no_decay is")

    @classmethod
    def example(cls) -> Self:
        return cls(rates={"*bias": 0.5, "*weight": 2.0}, no_decay=("*weight",))

    def seams(self, context: Context) -> Seams:
        def groups(given: list[ParameterGroup]) -> list[ParameterGroup]:
            pattern_of = first_pattern("pattern_rates.rates", list(self.rates), given)
            spared_by = first_pattern("pattern_rates.no_decay", self.no_decay, given)
            faster = [
                group
                if pattern is None
                else {**group, "lr_factor": group.get("lr_factor", 1.0) * self.rates[pattern]}
                for pattern, group in divided(given, pattern_of)
            ]
            with_decay = {
                id(each) for group in given if group.get("weight_decay") != 0.0 for _, each in group["params"]
            }
            return [
                group if spared is None else {**group, "weight_decay": 0.0}
                for spared, group in divided(
                    faster,
                    lambda name, each: "spared" if id(each) in with_decay and spared_by(name, each) else None,
                )
            ]

        return Seams(groups=groups)
