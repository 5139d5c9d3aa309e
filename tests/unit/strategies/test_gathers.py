"""What a watch sees of weights, and gathers that send 16 bits of some of them; their runs on two ranks are in tests/ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from snugfit.strategies.gathers import RoundedGather, WeightUses, rounded_weights
from tests.unit.strategies.ranks import group

INPUTS = torch.linspace(-1, 1, 12).view(3, 4)

USES: dict[str, tuple[Callable[[Tensor], object], torch.dtype | None]] = {
    "a product": (lambda weight: F.linear(INPUTS, weight).sum().backward(), torch.bfloat16),
    "a product with a view of it": (lambda weight: INPUTS @ weight.t().contiguous(), None),
    "a product with a part of it": (lambda weight: INPUTS[:, :2] @ weight[:, :2].t(), torch.bfloat16),
    "a norm": (lambda weight: F.layer_norm(INPUTS, (4,), weight[0]), None),
    "a product and a penalty": (lambda weight: F.linear(INPUTS, weight).sum() + weight.square().sum(), None),
    "two types": (lambda weight: (weight.bfloat16(), weight.half()), None),
    "a look-up": (lambda weight: F.embedding(torch.tensor([1]), weight), None),
    "a write": (lambda weight: weight.data.fill_(1.0), None),
    "a product after a write": (
        lambda weight: (weight.data.fill_(1.0), F.linear(INPUTS, weight)),
        torch.bfloat16,
    ),
    "nothing": (lambda weight: None, None),
}


@pytest.mark.parametrize("use", USES)
def test_only_a_weight_that_is_cast_and_not_read_otherwise_may_be_rounded(use: str) -> None:
    call, rounded = USES[use]
    weight = torch.nn.Parameter(torch.linspace(0, 1, 16).view(4, 4))
    with WeightUses([None, weight]) as watch, torch.autocast("cpu", dtype=torch.bfloat16):
        call(weight)
    assert rounded_weights(watch.uses) == [None, rounded]


def test_a_weight_that_is_sent_in_16_bits_comes_rounded_and_others_as_they_are(tmp_path: Path) -> None:
    weights = [torch.linspace(0, 1, size) for size in (3, 5, 2)]
    with group(tmp_path):
        gather = RoundedGather(lambda: weights, 1)
        joined, found = torch.cat(weights), torch.empty(10)
        gather(found, joined, dist.group.WORLD)
        assert torch.equal(found, joined)
        gather.dtypes = [torch.bfloat16, None, torch.float16]
        gather(found, joined, dist.group.WORLD)
        assert torch.equal(found, joined)
        gather.on = True
        gather(found, joined, dist.group.WORLD)
    expected = [weights[0].bfloat16().float(), weights[1], weights[2].half().float()]
    assert torch.equal(found, torch.cat(expected))


def test_weights_in_another_order_than_that_of_the_gather_are_seen(tmp_path: Path) -> None:
    with group(tmp_path):
        mesh = init_device_mesh("cpu", (1,))
        weights = [distribute_tensor(torch.full((2,), value), mesh, [Shard(0)]) for value in (1.0, 2.0)]
        gather = RoundedGather(lambda: weights, 1)
        gather.checks = True
        gather(torch.empty(4), torch.tensor([1.0, 1.0, 2.0, 2.0]), dist.group.WORLD)
        assert gather.in_order
        gather(torch.empty(4), torch.tensor([2.0, 2.0, 1.0, 1.0]), dist.group.WORLD)
        assert not gather.in_order
