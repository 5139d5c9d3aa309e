"""What several devices cannot have is refused by name, before anything is allocated."""

from __future__ import annotations

import pytest
import torch

from snugfit.core.technique import Sharing, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.step.step import Step
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from snugfit.techniques.numerics.adamw_8bit import AdamW8bit
from tests.laws import problems
from tests.ranks.pool import Ranks

STRATEGIES = {Sharing.COPIES: DataParallel, Sharing.SHARDS: FullyShard}
CONFLICTS = [
    (technique, sharing)
    for technique in [*problems.examples(), AdamW8bit(paged=True)]
    for sharing in Sharing
    if technique.refused_on(sharing)
]


@pytest.mark.parametrize(("technique", "sharing"), CONFLICTS, ids=str)
def test_a_technique_that_devices_cannot_have_is_refused_by_name(
    two: Ranks, technique: Technique, sharing: Sharing
) -> None:
    for message in two.run(refusal, technique, sharing):
        assert message.startswith(f"techniques: '{technique.card.name}' cannot be had where ")
        assert message.endswith(f"{technique.refused_on(sharing)}")


def refusal(technique: Technique, sharing: Sharing) -> str:
    """What the step says; the model has stayed as it was."""
    problem = problems.main((technique,))
    model = problem.model()
    before = list(model.parameters())
    with pytest.raises(PlanConflict) as conflict:
        Step(model, loss=problem.loss, techniques=[technique], strategy=STRATEGIES[sharing]())
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
    return str(conflict.value)


def test_the_way_out_of_a_refusal_is_one(two: Ranks) -> None:
    in_backward = problems.find_examples("optimizer_in_backward")[0]
    assert not in_backward.refused_on(Sharing.SHARDS)


def test_a_torch_optimizer_of_a_model_that_is_spread_is_refused(two: Ranks) -> None:
    for message in two.run(refusal_of_an_optimizer):
        assert message.startswith("optimizer: a torch optimizer holds the whole parameters")


def refusal_of_an_optimizer() -> str:
    model = problems.main(()).model()
    with pytest.raises(SettingError) as error:
        Step(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy=FullyShard())
    return str(error.value)
