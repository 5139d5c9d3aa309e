from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.core.batch import Batch
from snugfit.core.selection import check_shared
from snugfit.core.technique import Sharing
from snugfit.errors import PlanConflict, SettingError
from snugfit.step.micro_batch_sizes import cut
from snugfit.techniques.learning.ghost_batch_norm import GhostBatchNorm, ghosts
from tests.unit.techniques.model_changes import stock_from_its_bundle
from tests.unit.techniques.settings import MOMENT, context, refuses


def test_a_group_of_one_row_is_refused() -> None:
    refuses(GhostBatchNorm, rows=1)


def norm(rows: int = 4, kind: type[nn.Module] = nn.BatchNorm1d, **options: object) -> nn.Module:
    return GhostBatchNorm(rows=rows).prepare(nn.Sequential(kind(3, **options)))[0]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (5, 2)), (nn.BatchNorm3d, (5, 2, 2))],
)
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}]
)
def test_a_group_is_a_batch_of_torchs(
    kind: type[nn.Module], shape: tuple[int, ...], options: dict[str, object]
) -> None:
    plain, ghost = kind(3, **options), norm(4, kind, **options)
    inputs = torch.randn(11, 3, *shape)
    expected = torch.cat([plain(part) for part in (inputs[:4], inputs[4:8], inputs[8:])])
    assert torch.equal(ghost(inputs), expected)
    assert plain.state_dict().keys() == ghost.state_dict().keys()
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in ghost.state_dict().items())
    plain.eval(), ghost.eval()
    assert torch.equal(ghost(inputs), plain(inputs))


def test_the_running_statistics_follow_the_groups_in_turn() -> None:
    """Algorithm 1: `μ_run = (1 − η)^|B_L| μ_run + Σ (1 − η)^i η μ_i`, the last group with the most weight."""
    layer = norm(4, momentum=0.3)
    inputs = torch.randn(12, 3)
    layer(inputs)
    means = inputs.view(3, 4, 3).mean(dim=1)
    torch.testing.assert_close(layer.running_mean, 0.3 * (0.7**2 * means[0] + 0.7 * means[1] + means[2]))
    assert int(layer.num_batches_tracked) == 3


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_micro_batches_never_part_a_group(size: int) -> None:
    for rows in range(2, 23):
        whole = ghosts(rows, size)
        assert [row for group in whole for row in group] == list(range(rows))
        assert all(len(group) > 1 for group in whole)
        for micro_batch in range(size, rows):
            parts = cut(rows, micro_batch, size, paired=True)
            of_parts = [
                range(part.start + each.start, part.start + each.stop)
                for part in parts
                for each in ghosts(len(part), size)
            ]
            assert of_parts == whole, (micro_batch, parts)


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def trained(micro_batch: int | None, *techniques: sf.Technique, rows: int = 22) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(0)
    step = sf.Step(
        Net().double(), sf.SGD(learning_rate=0.1), "cross_entropy", techniques, micro_batch=micro_batch
    )
    for _ in range(3):
        window = torch.randn(rows, 4, generator=source, dtype=torch.float64)
        step((window, torch.arange(rows) % 3))
    return {name: value.detach() for name, value in step.model.state_dict().items()}


def test_with_it_the_micro_batch_is_a_matter_of_memory_alone() -> None:
    ghost = GhostBatchNorm(rows=4)
    whole, parts, plain = trained(None, ghost), trained(8, ghost), (trained(None), trained(8))
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-10, atol=1e-12)
    assert any(not torch.allclose(plain[0][name], plain[1][name]) for name in whole)
    with pytest.raises(SettingError, match="plan.micro_batch: is 3, and examples are mixed in groups of 4"):
        trained(3, ghost)


def test_groups_of_others_are_kept_whole_too() -> None:
    seams = GhostBatchNorm(rows=4).seams(context())
    assert seams.batch is not None
    paired = Batch(data=torch.zeros(12, 2), rows=12, group=6)
    assert seams.batch(paired, MOMENT).group == 12


def test_a_norm_whose_first_dimension_is_not_the_row_is_refused() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.norm(inputs.flatten(0, 1)).view_as(inputs).mean(dim=1)

    step = sf.Step(Flat(), sf.SGD(), "cross_entropy", [GhostBatchNorm(rows=2)])
    with pytest.raises(
        SettingError, match=r"works on \(12, 4\) for 6 rows, so its first dimension is not the row"
    ):
        step((torch.randn(6, 2, 4), torch.arange(6) % 3))


def test_a_copy_of_the_model_minds_its_own_rows() -> None:
    model = GhostBatchNorm(rows=2).prepare(Net())
    other = copy.deepcopy(model)
    assert other[1].groups is not model[1].groups and other[1].groups == model[1].groups


def test_a_model_without_batch_norm_is_refused() -> None:
    with pytest.raises(
        SettingError, match="ghost_batch_norm: has nothing to change: .* it has none. Remove it."
    ):
        GhostBatchNorm().prepare(nn.Linear(2, 2))
    with pytest.raises(SettingError, match="of another kind: SyncBatchNorm"):
        GhostBatchNorm().prepare(nn.Sequential(nn.SyncBatchNorm(3)))


def test_transformers_loads_what_was_trained_with_it(tmp_path: Path) -> None:
    stock_from_its_bundle(tmp_path, GhostBatchNorm(rows=3))


@pytest.mark.parametrize("sharing", Sharing)
def test_several_devices_refuse_it(sharing: Sharing) -> None:
    with pytest.raises(
        PlanConflict, match="'ghost_batch_norm' cannot be had .* each device has statistics of its own"
    ):
        check_shared([GhostBatchNorm()], sharing)
