"""What ranks run is what was planned for them, and what was predicted is compared with the most that one of them took."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snugfit.core.job import STRATEGY_NAMES, StrategyName
from snugfit.planner.cost.communication import Cluster
from snugfit.planner.devices.device import BASELINE, Link, Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.prediction.rank import Rank
from snugfit.strategies.fsdp import FullyShard
from snugfit.tracking.spool import read_events
from tests.ranks.law import of_run
from tests.ranks.pool import Ranks
from tests.ranks.test_rank_faults import Answer, recipe
from tests.ranks.test_rank_faults import snugfit as snugfit
from tests.unit.planner.test_sharing import subject

SHARDED = [name for name in STRATEGY_NAMES if name != "ddp"]


def settings(strategy: Any) -> tuple[Any, ...]:
    """All that a way to shard can differ in."""
    assert isinstance(strategy, FullyShard)
    assert strategy.mesh is not None
    return (
        tuple(strategy.mesh.shape),
        strategy.reshard_after_forward,
        strategy.cpu_offload,
        strategy.computes_in,
        strategy.reduce_each,
    )


def settings_of_run(name: str) -> tuple[Any, ...]:
    return settings(of_run(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDED)
def test_the_planner_shards_as_a_run_does(four: Ranks, name: StrategyName) -> None:
    cpu, link = find_device("cpu"), Link("example", 1e9, 0.0)
    rank = Rank(
        subject(),
        Machine(cpu, cpu, baseline=BASELINE),
        cluster=Cluster(2, 2, link, link),
        way=name,
        window=subject().window,
    )
    with rank.strategy() as planned:
        assert four.run(settings_of_run, name) == [settings(planned)] * 4


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_a_run_on_ranks_says_what_was_predicted_and_what_the_most_of_them_took(
    tmp_path: Path, snugfit: Callable[..., Answer], strategy: str
) -> None:
    code, result, errors = snugfit("train", recipe(tmp_path), "--devices", "2", "--strategy", strategy)
    assert code == 0, errors

    run = Path(result["run_dir"])
    plan = json.loads((run / "plan.json").read_text())
    events = {event["event"]: event for event in read_events(run / "events.jsonl")}
    assert plan["choice"]["devices"] == events["run"]["plan"]["devices"] == 2
    assert plan["choice"]["strategy"] == events["run"]["plan"]["strategy"]
    assert events["plan"]["predicted"]["peak_bytes"] == plan["reserved_bytes"]
    each = events["measured"]["peak_bytes_by_rank"]
    assert len(each) == 2
    assert events["measured"]["peak_bytes"] == max(each) > 2**27  # a process with torch in it
    assert "; measured " in errors
    assert "the most of 2 devices" in errors
