from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from snugfit.strategies.base import Strategy
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from tests.unit.strategies.ranks import ROWS, STRATEGIES, group, trained, two_ranks

ALL = slice(0, ROWS)


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_rank_gives_the_update_of_a_single_device(name: str, tmp_path: Path) -> None:
    alone = trained(Strategy, ALL)

    with group(tmp_path):
        found = trained(STRATEGIES[name], ALL)

    assert found == pytest.approx(alone, rel=1e-10, abs=1e-12)


@pytest.mark.slow
def test_two_ranks_with_unequal_weights_give_the_update_of_one(tmp_path: Path) -> None:
    """The second half of the window has one row with a label, the first has four: a mean of means would be wrong."""
    alone = trained(Strategy, ALL)

    for name, found in two_ranks(tmp_path).items():
        assert found == pytest.approx(alone, rel=1e-10, abs=1e-12), name


def test_a_frozen_parameter_is_sharded_and_stays_frozen(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)

    with group(tmp_path):
        wrapped = FullyShard().wrap(model)

    assert isinstance(wrapped[0].weight, DTensor)
    assert not wrapped[0].weight.requires_grad and wrapped[0].bias.requires_grad


def test_a_block_that_stands_in_two_places_is_gathered_with_the_whole_model(tmp_path: Path) -> None:
    """Or its gradients would be added up over ranks twice in a backward."""
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Linear(2, 2), shared)

    with group(tmp_path):
        wrapped = FullyShard().wrap(model)

    assert [isinstance(module, FSDPModule) for module in wrapped] == [False, True, False]


class Headed(nn.Module):
    """A list of blocks, each a list of layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2)])])
        self.head = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks[0][0](inputs))


def test_the_layers_of_a_block_that_is_a_list_are_sharded_one_by_one(tmp_path: Path) -> None:
    with group(tmp_path):
        wrapped = FullyShard().wrap(Headed())

    assert isinstance(wrapped.blocks[0][0], FSDPModule)
    assert not isinstance(wrapped.head, FSDPModule)


def test_weights_outside_of_blocks_stay_for_what_is_made_of_the_outputs_and_go_with_the_scoring(
    tmp_path: Path,
) -> None:
    model = Headed()

    def sharded() -> list[bool]:
        return [isinstance(layer.weight, DTensor) for layer in (model.blocks[0][0], model.head)]

    with group(tmp_path), torch.no_grad():
        strategy = FullyShard()
        strategy.wrap(model)
        with strategy.score(model):
            model(torch.ones(1, 2))
            assert sharded() == [True, False]
        assert sharded() == [True, True]
        model(torch.ones(1, 2))
        assert sharded() == [True, True]


def test_weights_are_computed_with_in_the_precision_that_is_asked_for(tmp_path: Path) -> None:
    seen = []
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.dtype))

    with group(tmp_path):
        FullyShard(computes_in=torch.bfloat16).wrap(model)(torch.ones(1, 2))

    assert seen == [torch.bfloat16]
    assert model[0].weight.dtype == torch.float32


def test_scalars_are_added_up_over_ranks_in_their_order(tmp_path: Path) -> None:
    with group(tmp_path):
        found = DataParallel().add_up([torch.tensor(2.0), torch.tensor(3.0)])

    assert [value.item() for value in found] == [2.0, 3.0]


def test_a_model_whose_weights_wait_on_the_host_says_what_it_computes_on(tmp_path: Path) -> None:
    with group(tmp_path):
        offloaded, there = FullyShard(cpu_offload=True), FullyShard()
        for strategy in (offloaded, there):
            strategy.wrap(nn.Linear(2, 2))
    assert offloaded.device == torch.device("cpu"), "the device of the mesh"
    assert there.device is None, "where its weights are"
