"""Other schedules for some of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from snugfit.core.parameters import ParameterGroup, divided
from snugfit.core.schedule import Rates, Schedule, known_total
from snugfit.core.technique import Card, Context, Family, Seams, Technique, hash_of
from snugfit.kit.module_patterns import first_pattern

_KEY = "schedule"


@dataclass(frozen=True)
class PerGroup(Technique):
    """A schedule for each pattern of parameters' or modules' names, the first match wins; `default` for all others."""

    schedules: Mapping[str, Schedule]
    default: Schedule

    __hash__ = hash_of

    card: ClassVar[Card] = Card(
        name="per_group",
        summary="Gives parameters whose names match a pattern a schedule of their own.",
        family=Family.LEARNING,
        source="torch's LambdaLR with one function a group",
        seams=("groups", "schedule"),
        cost="one call of the optimizer's kernel more for each pattern",
        use_when="a new head needs no warm-up, or one part of the model is to stop learning early",
    )

    def __post_init__(self) -> None:
        wanted = "one pattern or more, each with a schedule that goes by updates alone"
        given = isinstance(self.schedules, Mapping) and len(self.schedules) > 0
        self.require(
            "schedules", given and all(isinstance(each, Schedule) for each in self.schedules.values()), wanted
        )
        self.require("default", isinstance(self.default, Schedule), "a schedule that goes by updates alone")

    @classmethod
    def example(cls) -> Self:
        from snugfit.techniques import find

        constant, polynomial = cast(Any, (find("constant"), find("polynomial")))
        return cls(schedules={"*bias": polynomial(power=2.0, minimum=0.1)}, default=constant(warmup=2))

    def seams(self, context: Context) -> Seams:
        every = [*self.schedules.values(), self.default]
        total = known_total(self.card.name, context, any(each.needs_total() for each in every))
        if context.total_updates is not None:
            for each in every:
                each.check(total)

        def groups(given: list[ParameterGroup]) -> list[ParameterGroup]:
            pattern_of = first_pattern("per_group.schedules", list(self.schedules), given)
            return [
                group if pattern is None else {**group, _KEY: pattern}
                for pattern, group in divided(given, pattern_of)
            ]

        def schedule_of(group: Mapping[str, Any]) -> Schedule:
            return self.schedules.get(group.get(_KEY, ""), self.default)

        return Seams(groups=groups, schedule=Rates(schedule_of, total))
