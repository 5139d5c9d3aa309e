"""What each rank does with its part of a sharded tensor is its part of what is done to the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from snugfit.kit.optimizers.blockwise import rows_of_blocks, spread
from snugfit.kit.optimizers.foreach import add_, copy_, global_norm, lerp, lerp_, scale_, sign_
from snugfit.kit.precision.bf16_rounding import rounded_stochastically
from snugfit.kit.sharded_tensors import of_part, own_part, whole
from tests.ranks.pool import Ranks

SHAPE = (5, 3)  # of which the ranks have 3 and 2 rows


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape or SHAPE, generator=torch.Generator().manual_seed(seed))


def sharded(tensor: Tensor) -> Tensor:
    return distribute_tensor(tensor, init_device_mesh("cpu", (2,)), [Shard(0)], src_data_rank=None)


def as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def changed(spread_out: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """What each function makes of the same tensors."""
    found: dict[str, Tensor] = {}

    def change(name: str, function: Callable[..., Any], *rest: Any) -> None:
        tensor = spread_out(drawn(0))
        function([tensor], *rest)
        found[name] = whole(tensor)

    other = spread_out(drawn(1))
    change("scale", scale_, torch.tensor(0.3))
    change("lerp", lerp_, [other], 0.3)
    change("add", add_, [other], 0.3)
    change("sign", sign_, 0.5)
    change("copy", copy_, [other])
    (moved,) = lerp([spread_out(drawn(0))], [other], 0.3)
    found["new lerp"] = whole(of_part(moved, other) if spread_out is sharded else moved)
    found["norm"] = global_norm([spread_out(drawn(0)), other])
    found["rounding"] = whole(rounded_stochastically(spread_out(drawn(0)), torch.Generator().manual_seed(0)))
    return found


def test_a_sharded_tensor_is_changed_as_the_whole_one_is(two: Ranks) -> None:
    alone = changed(as_it_is)
    for found in two.run(changed, sharded):
        assert set(found) == set(alone)
        for name, value in found.items():
            torch.testing.assert_close(value, alone[name], rtol=0, atol=1e-6 if name == "norm" else 0)


def test_a_tensor_is_whole_on_each_rank_whatever_rows_it_has(two: Ranks) -> None:
    """The last rank has 2 of 5 rows, and none where there is one; a tensor without numbers is not sent."""
    for found in two.run(put_together, UNEVEN):
        assert found == [drawn(0, *shape).tolist() for shape in UNEVEN]


UNEVEN = [(5, 3), (4,), (1, 2, 3), (0, 3), (3, 0)]


def put_together(shapes: list[tuple[int, ...]]) -> list[Any]:
    return [whole(sharded(drawn(0, *shape))).tolist() for shape in shapes]


def test_no_rows_are_gathered_under_a_name_that_two_threads_of_gloo_may_free(two: Ranks) -> None:
    """Torch names the exchange of `full_tensor` by more letters than lie in place (docs/architecture/ranks.md)."""
    for found in two.run(gathers_of_functions):
        assert found == {"of whole": 0, "of torch": 1}


def gathers_of_functions() -> dict[str, int]:
    ways: dict[str, Callable[[Any], Tensor]] = {
        "of whole": whole,
        "of torch": lambda rows: rows.full_tensor(),
    }
    found = {}
    for name, gathered in ways.items():
        rows = sharded(drawn(0))
        with CommDebugMode() as watch:
            gathered(rows)
        found[name] = watch.get_comm_counts()[torch.ops.c10d_functional.all_gather_into_tensor]
    return found


BLOCK = 256
CUT = {  # of 2 ranks: the fewest rows that are whole blocks
    (4, 256): 1,
    (4, 512): 1,
    (8, 128): 2,
    (10, 128): None,  # 5 rows are 2 blocks and a half
    (6, 192): None,  # 4 rows are 3 blocks, and a rank has 3
    (8, 192): 4,
    (512,): 256,
    (300,): None,
}


def test_a_weight_is_in_whole_blocks_where_each_rank_has_whole_ones(two: Ranks) -> None:
    for found in two.run(units, list(CUT)):
        assert found == list(CUT.values())


def units(shapes: list[tuple[int, ...]]) -> list[int | None]:
    return [rows_of_blocks(sharded(torch.zeros(shape)), BLOCK) for shape in shapes]


def test_what_is_kept_of_blocks_is_whole_in_their_order(two: Ranks) -> None:
    """Rank 0 has 3 of 5 rows of one block each."""
    for found in two.run(kept_of_blocks):
        assert found.tolist() == [[0.0], [0.0], [0.0], [1.0], [1.0]]


def kept_of_blocks() -> Tensor:
    weight = sharded(torch.zeros(5, BLOCK))
    blocks = own_part(weight).numel() // BLOCK
    rank = float(torch.distributed.get_rank())
    return whole(spread(torch.full((blocks,), rank), weight, BLOCK, per_block=1))
