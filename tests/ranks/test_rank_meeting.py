"""How ranks meet, and what they refuse together: each says what is wrong once, under the name of the host."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from snugfit.errors import DataError, RanksLost, SaidElsewhere, SettingError
from snugfit.strategies.base import SeveralRanks
from snugfit.strategies.process_group import agreed, answered, check_devices, check_same, joined
from snugfit.system.processes import World, this_world
from tests.ranks.pool import Ranks

HOST = socket.gethostname()


def test_ranks_that_have_other_things_refuse_to_train_together(two: Ranks) -> None:
    same, others = two.run(refusal, "torch", "2.13")
    assert same == (
        "SettingError",
        f"ranks: 'torch' is '2.14' on {HOST} (rank 1) and '2.13' on {HOST} (rank 0). Give all of them the same recipe, data and versions.",
    )
    assert others[0] == "SaidElsewhere"


def refusal(name: str, value: str) -> tuple[str, str]:
    identity = {name: value if dist.get_rank() == 0 else "2.14", "recipe": "a"}
    with pytest.raises((SettingError, SaidElsewhere)) as error:
        check_same(identity)
    check_same({"recipe": "a"})  # and afterwards they are not out of step
    return type(error.value).__name__, str(error.value)


@pytest.mark.parametrize(
    ("wrong", "messages"),
    [
        ((1,), ("SettingError", f"ranks: {HOST} (rank 1): data: none on rank 1")),
        ((0,), ("DataError", "data: none on rank 0")),
        ((0, 1), ("DataError", "data: none on rank 0")),
    ],
)
def test_what_is_wrong_on_one_rank_is_said_by_the_first(
    two: Ranks, wrong: tuple[int, ...], messages: tuple[str, str]
) -> None:
    first, second = two.run(prepared, wrong)
    assert first == messages
    assert second[0] == "SaidElsewhere"


def prepared(wrong: tuple[int, ...]) -> tuple[str, str]:
    rank = dist.get_rank()
    with pytest.raises((SettingError, DataError, SaidElsewhere)) as error, agreed():
        _prepare(rank in wrong)
    with agreed():  # nothing is wrong any more
        pass
    return type(error.value).__name__, str(error.value)


def _prepare(wrong: bool) -> None:
    if wrong:
        raise DataError.from_text(f"data: none on rank {dist.get_rank()}")


def test_a_rank_that_waits_in_vain_says_where_and_for_what(two: Ranks) -> None:
    message, _ = two.run(waiting)
    assert message.startswith(
        f"rank 0 ({HOST}), at update 7, waiting in all_reduce, did not hear of the other ranks"
    )
    two.end()  # the group has failed


def waiting() -> str:
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    strategy = SeveralRanks()
    if strategy.rank == 1:
        time.sleep(2)
        return ""
    with pytest.raises(RanksLost) as error, answered(lambda: "at update 7"):
        dist.all_reduce(torch.ones(1), group=group)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer", "has ended"),
        (
            "Got the following error: RuntimeError: Application timeout caused pair closure",
            "one of them hangs",
        ),
    ],
)
def test_both_ways_in_which_gloo_puts_it_are_known(two: Ranks, text: str, phrase: str) -> None:
    for message in two.run(lost, text):
        assert "at update 7, waiting in the exchange of gradients, " in message
        assert phrase in message


def lost(text: str) -> str:
    with pytest.raises(RanksLost) as error, answered(lambda: "at update 7"):
        raise RuntimeError(text)
    return str(error.value)


def test_an_error_of_ones_own_is_not_taken_for_one_of_the_others() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), answered(lambda: "at update 1"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_processes_that_do_not_come_are_named_with_the_place_to_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(port))
    with (
        pytest.raises(
            RanksLost, match=rf"{HOST} \(rank 0 of 2\) does not meet the others at localhost:{port}: "
        ),
        joined(World(rank=0, size=2), "cpu", timeout_seconds=1),
    ):
        pass


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "2", "RANK": "0"},
        {"WORLD_SIZE": "2", "RANK": "first", "LOCAL_RANK": "0"},
        {"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]"},
    ],
)
def test_an_environment_that_says_half_of_it_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="several processes train together"):
        this_world(environment)


def test_more_processes_than_devices_are_refused_and_cpus_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    check_devices("cuda", 2)
    check_devices("cpu", 8)
    with pytest.raises(SettingError, match="3 processes are to train on this host, which has 2 cuda devices"):
        check_devices("cuda", 3)


def test_slurm_without_a_list_of_hosts_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[1-2]")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(
            SettingError, match=r"SLURM_STEP_NODELIST=node\[1-2\] cannot be listed .* Set MASTER_ADDR"
        ),
        joined(World(rank=0, size=2), "cpu", timeout_seconds=1),
    ):
        pass
