"""A checkpoint of tensors that are spread over ranks: each writes its parts, and anybody can read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.placement_types import Shard

from snugfit.kit.serialize import pack
from snugfit.run.checkpoint import checkpoint_files, sharded_files
from snugfit.strategies.fsdp import FullyShard
from tests.ranks.pool import Ranks

TENSORS = {
    "even": torch.arange(8.0).view(4, 2),
    "uneven": torch.arange(15.0, dtype=torch.float64).view(5, 3),
    "single": torch.tensor([7], dtype=torch.int64),  # of which the second rank has nothing
}


def spread(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in tensors.items()}


def written(root: Path) -> None:
    parts = {"model": {"parameters": spread(TENSORS), "count": 3, "plain": torch.ones(2)}}
    checkpoint_files.write(root / "update-00000001", pack(parts), keep=2, strategy=FullyShard())


def read(root: Path, own: dict[str, Tensor]) -> dict[str, Any]:
    found = checkpoint_files.load_newest(root).parts["model"]
    assert found["count"] == 3 and torch.equal(found["plain"], torch.ones(2))
    return sharded_files.loaded(found["parameters"], own)


def read_parts(root: Path) -> list[list[float]]:
    own = spread({name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()})
    found = read(root, own)
    assert all(found[name].placements == own[name].placements for name in TENSORS)
    return [found[name].to_local().flatten().tolist() for name in TENSORS]


def test_the_ranks_read_their_own_parts_again(two: Ranks, tmp_path: Path) -> None:
    two.run(written, tmp_path)

    assert two.run(read_parts, tmp_path) == [
        [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [7]],
        [[4.0, 5.0, 6.0, 7.0], [9.0, 10.0, 11.0, 12.0, 13.0, 14.0], []],
    ]


def test_one_process_reads_the_whole(two: Ranks, tmp_path: Path) -> None:
    two.run(written, tmp_path)

    found = read(tmp_path, TENSORS)

    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def test_no_element_is_written_twice(two: Ranks, tmp_path: Path) -> None:
    two.run(written, tmp_path)

    files = sorted((tmp_path / "update-00000001/shards").iterdir())

    assert [sum(tensor.numel() for tensor in load_file(file).values()) for file in files] == [14, 10]


def test_a_damaged_part_makes_the_checkpoint_one_to_pass_over(two: Ranks, tmp_path: Path) -> None:
    two.run(written, tmp_path)
    (tmp_path / "update-00000001").rename(tmp_path / "update-00000000")
    two.run(written, tmp_path)
    damaged = next((tmp_path / "update-00000001/shards").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")

    found = checkpoint_files.load_newest(tmp_path)

    assert found.folder.name == "update-00000000"
    assert "is not what was written" in found.rejected[0]


def test_a_rank_that_cannot_write_leaves_no_checkpoint(two: Ranks, tmp_path: Path) -> None:
    assert two.run(failing, tmp_path) == [True, True]
    assert not list(tmp_path.glob("update-*"))


def failing(root: Path) -> bool:
    """Whether all ranks are told that one of them could not write."""
    strategy = FullyShard()
    if strategy.rank == 1:
        sharded_files.write = _full  # type: ignore[assignment]
    try:
        checkpoint_files.write(
            root / "update-00000001", pack({"model": spread(TENSORS)}), keep=2, strategy=strategy
        )
    except checkpoint_files.RunFolderError:
        return True
    finally:
        sharded_files.write = _WRITE
    return False


_WRITE = sharded_files.write


def _full(*args: Any) -> list[Path]:
    _WRITE(*args)
    raise OSError("no space left on device")
