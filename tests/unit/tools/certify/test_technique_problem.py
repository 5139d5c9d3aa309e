"""The net that techniques are tried on has what they change."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import snugfit as sf
from snugfit.core.technique import Technique
from snugfit.techniques import find
from snugfit.tools.certify.technique_models import contrastive
from snugfit.tools.certify.technique_problem import further_layers


def example(name: str) -> Technique:
    return find(name).example()


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (("sgd", "cutout", "squeeze_excite"), ()),
        (("ghost_batch_norm",), ("batch_norm",)),
        (("blurpool", "glu"), ("feed_forward", "strided")),
    ],
)
def test_a_net_gets_the_layers_without_which_a_technique_refuses_it(
    names: tuple[str, ...], layers: tuple[str, ...]
) -> None:
    before = torch.get_rng_state()
    assert further_layers([example(name) for name in names]) == layers
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_a_technique_of_such_layers_is_certified() -> None:
    certificate = sf.certify_technique(example("ghost_batch_norm"))
    assert not certificate.broken
    assert certificate.law("accumulation").verdict == "held"


def test_the_loss_that_couples_rows_has_its_targets_where_the_scores_are() -> None:
    with FakeTensorMode():
        outputs = {name: torch.ones(4, 3, device="cuda") for name in ("logits", "query", "key")}
        values, _ = contrastive(outputs, {"labels": torch.zeros(4, dtype=torch.long, device="cuda")})
    assert values.device.type == "cuda"
