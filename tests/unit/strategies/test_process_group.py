"""A group on GPUs, by a recorded stand-in for torch.distributed; only several GPUs can show that NCCL does as it is asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from snugfit.errors import SaidElsewhere, SettingError
from snugfit.strategies import process_group as module
from snugfit.strategies.base import SeveralRanks
from snugfit.strategies.process_group import device_of, joined
from snugfit.system import processes
from snugfit.system.processes import World, this_world

SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "a"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What is asked of torch on a host with two GPUs."""
    found: list[tuple[str, Any]] = []
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "")
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: found.append(("set_device", device)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **options: found.append((backend, options))
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: found.append(("destroy", None)))
    monkeypatch.setattr(module, "_check_apart", lambda gpu: found.append(("check", gpu)))
    return found


def test_a_group_on_gpus_knows_its_device_and_is_destroyed_at_a_good_end(
    calls: list[tuple[str, Any]],
) -> None:
    with joined(World(rank=1, size=2, local_rank=1), "cuda:1", timeout_seconds=5):
        assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    names = [name for name, _ in calls]
    assert names == ["set_device", "cpu:gloo,cuda:nccl", "check", "destroy"]
    assert calls[0][1] == calls[1][1]["device_id"] == torch.device("cuda", 1)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_under_an_error_a_group_on_gpus_is_left_as_it_is_and_one_on_the_host_is_destroyed(
    calls: list[tuple[str, Any]], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for device, ends in (("cuda:0", False), ("cpu", True)):
        calls.clear()
        with pytest.raises(error), joined(World(rank=0, size=2), device, timeout_seconds=5):
            raise error
        assert (("destroy", None) in calls) is ends


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("torn"), 1), (KeyboardInterrupt(), 130)])
def test_an_error_that_ends_a_script_ends_its_process_at_once_where_nccl_would_wait(
    calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """As where `sf.train` is called under torchrun, and not by the command, which leaves by itself."""
    ended: list[Any] = []

    def show(*raised: Any) -> None:
        ended.append(raised[1])

    monkeypatch.setattr(processes, "leave_as_rank", ended.append)
    monkeypatch.setattr(sys, "excepthook", show)
    with pytest.raises(type(error)), joined(World(rank=0, size=2), "cpu", timeout_seconds=5):
        raise error
    assert sys.excepthook is show, "gloo waits for nobody"
    with pytest.raises(type(error)), joined(World(rank=0, size=2), "cuda:0", timeout_seconds=5):
        raise error
    sys.excepthook(type(error), error, None)
    assert ended == [error, code]


def test_an_environment_that_says_how_nccl_handles_errors_is_kept(
    calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    with joined(World(rank=0, size=2), "cuda:0", timeout_seconds=5):
        assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"


@pytest.mark.parametrize(
    ("visible", "device"), [("0", "cuda:0"), ("GPU-5ebe9f43", "cuda:0"), ("0,1", "cuda:1"), ("", "cuda:1")]
)
def test_a_task_of_slurm_that_sees_one_gpu_takes_that_one(visible: str, device: str) -> None:
    """As with srun --gpus-per-task=1."""
    assert device_of("cuda", this_world({**SLURM, "CUDA_VISIBLE_DEVICES": visible})) == device


def test_a_process_of_torchrun_takes_the_gpu_of_its_place_whatever_it_sees() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert device_of("cuda", this_world(torchrun)) == "cuda:1"


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, list[tuple[str, str]]], None]:
    """Sets what the ranks tell each other."""

    def say(rank: int, places: list[tuple[str, str]]) -> None:
        monkeypatch.setattr(dist, "get_world_size", lambda: len(places))
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(
            dist, "all_gather_object", lambda found, mine: found.__setitem__(slice(None), places)
        )

    return say


def test_two_ranks_on_one_gpu_are_refused_by_name_and_the_first_says_so(
    gathered: Callable[[int, list[tuple[str, str]]], None],
) -> None:
    gathered(0, [("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")])
    module._check_apart("GPU-1")
    twice = [("a", "GPU-1"), ("b", "GPU-1"), ("b", "GPU-1")]
    for rank, kind in ((0, SettingError), (2, SaidElsewhere)):
        gathered(rank, twice)
        with pytest.raises(kind, match=r"^ranks: 1 and 2 have the same GPU of b\."):
            module._check_apart("GPU-1")


def test_statistics_of_all_batch_norms_are_averaged_in_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged: list[int] = []

    def other_rank_has_twice_as_much(tensor: Tensor) -> None:
        exchanged.append(tensor.numel())
        tensor.mul_(3)

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "all_reduce", other_rank_has_twice_as_much)
    means = [torch.arange(6.0).view(2, 3), torch.ones(4, 2).t(), torch.ones(()), torch.zeros(0)]
    wide = torch.ones(2, dtype=torch.float64)
    expected = [mean * 1.5 for mean in (*means, wide)]
    SeveralRanks().average_([*means, wide])
    assert exchanged == [6 + 8 + 1, 2], "one for each type"
    assert all(torch.equal(*pair) for pair in zip((*means, wide), expected, strict=True))
