"""Each outcome of the decision, with bytes and seconds worked out by hand.

The model has 1 GiB of weights, as much of gradients and 2 GiB of optimizer states, in 16 blocks of 64 MiB, and 2 GiB of
activations; it computes for 3 s an update. `times(k)` multiplies all that belongs to parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from snugfit.errors import SettingError
from snugfit.planner.choice.sharing_rules import NOT_YET, Decision, Facts, decide
from snugfit.planner.cost.communication import Cluster
from snugfit.planner.devices.device import Link

MIB, GIB = 2**20, 2**30
NVLINK = Link("nvlink", 300e9, 0.0)
PCIE = Link("pcie4", 16 * GIB, 0.0)
INFINIBAND = Link("infiniband", 25e9, 0.0)
ETHERNET = Link("ethernet10", GIB, 0.0)
CARD = Cluster(1, 1, PCIE, ETHERNET)


def times(factor: int, **changes: Any) -> Facts:
    facts = Facts(
        peak=(4 * factor + 2) * GIB,
        weights=factor * GIB,
        gradients=factor * GIB,
        optimizer=2 * factor * GIB,
        exchanged=factor * GIB,
        largest_weights=factor * 64 * MIB,
        largest_activations=128 * MIB,
        blocks=16,
        outside=0,
        micro_batches=8,
        forward=1.0,
        backward=2.0,
        cluster=CARD,
        device_memory=24 * GIB,
        host_memory=128 * GIB,
        host_link=PCIE,
    )
    return replace(facts, **changes)


def needed(decision: Decision) -> dict[str, float]:
    """GiB on a device of each way."""
    return {way.strategy: way.bytes / GIB for way in decision.ways}


def seconds(decision: Decision) -> dict[str, float]:
    return {way.strategy: way.seconds for way in decision.ways}


OUTCOMES = {
    "one device, fits": (times(1), "single"),
    "one device, does not fit": (times(8), "single"),
    "one node, fits, fast link": (times(1, cluster=Cluster(8, 1, NVLINK, ETHERNET)), "ddp"),
    "one node, fits, slow link": (
        times(1, cluster=Cluster(2, 1, Link("usb", 0.1 * GIB, 0), ETHERNET)),
        "single",
    ),
    "many nodes, fits": (times(1, cluster=Cluster(8, 4, NVLINK, INFINIBAND)), "ddp"),
    "one node, a copy does not fit, weights do": (
        times(7, cluster=Cluster(8, 1, PCIE, ETHERNET)),
        "fsdp-zero2",
    ),
    "one node, weights and activations do not fit": (
        times(14, cluster=Cluster(8, 1, PCIE, ETHERNET)),
        "fsdp",
    ),
    "many nodes, slow between them": (times(14, cluster=Cluster(8, 2, NVLINK, ETHERNET)), "fsdp-hybrid"),
    "many nodes, a node cannot hold a copy": (
        times(28, cluster=Cluster(8, 2, NVLINK, INFINIBAND)),
        "fsdp",
    ),
    "one node, shards do not fit, hosts do": (
        times(20, cluster=Cluster(2, 1, PCIE, ETHERNET)),
        "fsdp-offload",
    ),
    "the largest layer does not fit": (
        times(14, cluster=Cluster(8, 1, PCIE, ETHERNET), largest_weights=6 * GIB),
        "tiled_linear + fsdp",
    ),
    "the largest layer's activations do not fit": (
        times(1, peak=34 * GIB, largest_activations=30 * GIB, cluster=Cluster(8, 1, PCIE, ETHERNET)),
        NOT_YET,
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome(name: str) -> None:
    facts, strategy = OUTCOMES[name]

    assert decide(facts).strategy == strategy


def test_one_copy_and_its_buckets_are_what_ddp_needs() -> None:
    """6 GiB and 1 GiB of gradients once more; of 8 devices each computes 3/8 s and hides the exchange but its last bucket."""
    found = decide(times(1, cluster=Cluster(8, 1, NVLINK, ETHERNET)))

    assert needed(found)["ddp"] == 7.0
    last_bucket = 2 * 7 / 8 * GIB / 41 / 300e9  # of ⌈1024 / 25⌉
    assert seconds(found)["ddp"] == pytest.approx(0.375 + last_bucket)
    assert found.way is not None and found.way.strategy == "ddp"
    assert "single fits too and takes 3.00 s an update, against 0.38 s." in found.why


def test_stage_2_keeps_the_weights_and_a_share_of_everything() -> None:
    """7 GiB of weights, 28/8 of states, 2 of activations, one block that comes (7/16), three blocks' gradients (21/16)."""
    found = decide(times(7, cluster=Cluster(8, 1, PCIE, ETHERNET)))

    assert needed(found)["fsdp-zero2"] == 7 + 3.5 + 2 + 7 / 16 + 21 / 16
    # a block of 7/16 GiB takes (7/8)·(7/16)/16 s to gather and to scatter, longer than the 1/128 s and 1/64 s that it computes
    block = 7 / 8 * 7 / 16 / 16
    exposed = (block + 15 * (block - 1 / 128)) + (block + 15 * (block - 1 / 64))
    assert seconds(found)["fsdp-zero2"] == pytest.approx(0.375 + exposed)


def test_stage_3_keeps_a_share_of_everything_and_three_blocks() -> None:
    """56/8 of states, 2 of activations, three blocks of 14/16 and their gradients."""
    found = decide(times(14, cluster=Cluster(8, 1, PCIE, ETHERNET)))

    assert needed(found)["fsdp"] == 7 + 2 + 2 * 3 * 14 / 16
    assert found.why[0] == (
        "single: needs 58.00 GiB on a device, which has 24.00 GiB (weights 14.00 GiB, gradients 14.00 GiB, optimizer 28.00 GiB, "
        "activations and temporaries 2.00 GiB)."
    )
    assert (
        found.why[1] == "ddp: needs 72.00 GiB on a device, which has 24.00 GiB (with 14.00 GiB of buckets)."
    )


def test_weights_outside_of_blocks_stay_whole_while_blocks_compute() -> None:
    facts = times(14, cluster=Cluster(8, 1, PCIE, ETHERNET))
    plain, found = needed(decide(facts)), needed(decide(replace(facts, outside=GIB)))

    assert found["fsdp"] - plain["fsdp"] == 2.0  # and their gradients
    assert found["fsdp-zero2"] - plain["fsdp-zero2"] == 1.0  # where weights are whole in any case


def test_hybrid_sharding_sends_less_between_nodes_than_sharding_over_all() -> None:
    """Between 2 nodes at 1 GiB/s: 14 GiB of gradients (2·1/2 each), beside 14 GiB thrice (15/16 each)."""
    found = decide(times(14, cluster=Cluster(8, 2, NVLINK, ETHERNET)))

    hybrid, everywhere = seconds(found)["fsdp-hybrid"], seconds(found)["fsdp"]
    assert hybrid == pytest.approx(14, rel=0.05)
    assert everywhere == pytest.approx(3 * 14 * 15 / 16, rel=0.02)


def test_offloaded_shards_need_the_host_of_each_node() -> None:
    """80 GiB of states lie in the host of the only node; on a device 2 of activations and three blocks of 1.25 twice."""
    found = decide(times(20, cluster=Cluster(2, 1, PCIE, ETHERNET)))

    assert needed(found)["fsdp-offload"] == 2 + 2 * 3 * 1.25
    assert found.way is not None and found.way.host_bytes == 80 * GIB
    assert any("80.00 GiB of 128.00 GiB of a host's memory" in sentence for sentence in found.why)


def test_adapters_leave_nothing_to_exchange_but_weights() -> None:
    """14 GiB of frozen weights and 0.1% trained: a copy fits, and what DDP sends is negligible."""
    trained = 14 * MIB
    facts = times(
        14, peak=16 * GIB + 4 * trained, gradients=trained, optimizer=2 * trained, exchanged=trained
    )

    found = decide(replace(facts, cluster=Cluster(2, 1, ETHERNET, ETHERNET)))

    assert found.strategy == "ddp"
    assert seconds(found)["ddp"] == pytest.approx(1.5 + 14 / 1024)  # one bucket: nothing is hidden
    assert seconds(found)["fsdp"] > 10 * seconds(found)["ddp"]


def test_a_host_that_is_too_small_is_said() -> None:
    found = decide(times(20, cluster=Cluster(2, 1, PCIE, ETHERNET), host_memory=64 * GIB))

    assert found.way is None
    assert "fsdp-offload: needs 80.00 GiB of a host's memory, which has 64.00 GiB." in found.why
    assert "more of their memory or more nodes" in found.why[-1]


def test_activations_that_do_not_fit_are_not_answered_by_sharding() -> None:
    """With the 128 MiB of one block instead of 56 GiB, one copy comes to 4.125 GiB and DDP to one more."""
    found = decide(times(1, peak=60 * GIB, cluster=Cluster(2, 1, NVLINK, ETHERNET)))

    assert found.way is None
    assert "128.00 MiB instead of 56.00 GiB, ddp would need 5.12 GiB of 24.00 GiB: recompute" in found.why[-1]


def test_what_is_about_as_fast_gives_way_to_what_is_simpler() -> None:
    """Links so fast that nothing is waited for: stage 2 and DDP take the same time."""
    endless = Link("endless", 1e15, 0.0)
    found = decide(times(1, cluster=Cluster(2, 1, endless, endless)))

    assert seconds(found)["fsdp-zero2"] == pytest.approx(seconds(found)["ddp"], rel=1e-4)
    assert found.strategy == "ddp"


def test_fewer_micro_batches_than_devices_are_cut_finer() -> None:
    found = decide(times(1, micro_batches=1, cluster=Cluster(8, 1, NVLINK, ETHERNET)))

    assert seconds(found)["ddp"] == pytest.approx(3 / 8, rel=0.01)


def test_a_peak_that_cannot_hold_its_parts_is_refused() -> None:
    with pytest.raises(SettingError, match=r"3.00 GiB cannot hold .* 4.00 GiB"):
        times(1, peak=3 * GIB)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(SettingError, match="blocks: must be at least 1, found 0"):
        times(1, blocks=0)
