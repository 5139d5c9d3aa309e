"""What is predicted of a small language model with and without the parts of its loops that are like others, as `python loops.py` prints it of
a pretended GPU."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import snugfit as sf
from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.kit import row_chunks
from snugfit.kit.skeleton import skeleton
from snugfit.planner.cost.communication import Cluster
from snugfit.planner.devices.device import Machine
from snugfit.planner.prediction.peak_and_time import prediction_of
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.prediction.rank import Rank
from snugfit.planner.target import Target, machine_of
from snugfit.planner.trace import recorder
from snugfit.planner.trace.dry_run import Subject

CASES: dict[str, list[Technique]] = {
    # 24 tokens a row
    **{f"chunks of {size}": [sf.ChunkedLoss(chunk=size)] for size in (5, 8, 24)},
    "chunks in bf16": [sf.ChunkedLoss(chunk=7), sf.BF16()],
    "chunks recomputed": [sf.ChunkedLoss(chunk=7), sf.Recompute(), sf.ActivationOffload(min_bytes=1)],
    "chunks of an adapted head": [sf.ChunkedLoss(chunk=7), sf.LoRA(targets=("lm_head",))],
    "pieces": [sf.PureBF16()],
    "pieces and their rests": [sf.PureBF16(rounding="kahan", states="fp32")],
    "pieces in the rounding alone": [sf.PureBF16(), sf.Lion()],
    "masters": [sf.MasterWeights()],
    "moments on the host": [sf.OptimizerOffload()],
    "masters on the host": [sf.MasterWeights(), sf.OptimizerOffload()],
    "moments of few bits": [sf.PureBF16(), sf.AdamW4bit(min_size=256)],
    "moments of one for each kind": [sf.PureBF16(), sf.Adafactor()],
    "tiles": [sf.TiledLinears(tiles=7, above=0)],
    "tiles in bf16": [sf.TiledLinears(tiles=5, above=0), sf.BF16()],
    "all of them": [
        sf.ChunkedLoss(chunk=7),
        sf.PureBF16(),
        sf.Recompute(),
        sf.TiledLinears(tiles=5, above=0),
    ],
}
SHARDED = ("pieces", "masters", "masters on the host", "moments of few bits")
"""Cases that are run as one of two devices that share the weights, too."""

SIZES = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 2}


def subject() -> Subject:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2))
    ids = torch.arange(8 * 24).view(8, 24) % 300
    window = Batch.of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    job = Job.of(global_batch=8, updates=4)
    return Subject(lambda: skeleton(model), window, job, 100, (sf.AdamW(), sf.ClipNorm(1.0)), "causal_lm")


@contextmanager
def every_part() -> Iterator[None]:
    """Within, nothing is left out of a loop."""
    with (
        mock.patch.object(recorder, "needed", lambda kinds: list(range(len(kinds)))),
        mock.patch.object(recorder.Recorder, "_taken_for_run", return_value=False),
    ):
        yield


def planner(own: Subject, machine: Machine, sharded: bool) -> Planner:
    """The planner of one device, or of one of two that share the weights."""
    if not sharded:
        return Planner(own, machine)
    link = machine.device.peer_link
    return Rank(own, machine, cluster=Cluster(2, 1, link, link), way="fsdp", window=own.window)


def figures(techniques: Sequence[Technique], machine: Machine, sharded: bool = False) -> dict[str, Any]:
    """All that is predicted, and how many operators were dispatched for it."""
    own, plan = subject(), Plan(device=machine.type, micro_batch=4)
    optimizer = [] if any("optimizer" in each.card.seams for each in techniques) else [sf.AdamW()]
    dispatched, threads, call_of = Counter[str](), set[int](), recorder.call_of

    def counted(func: Any, *given: Any) -> Any:  # a mock would hold the tensors
        dispatched[str(func)] += 1
        threads.add(threading.get_ident())
        return call_of(func, *given)

    with (
        mock.patch.object(row_chunks, "PIECE", 600),  # of 37 rows of the head
        mock.patch.object(recorder, "call_of", counted),
    ):
        run = planner(own, machine, sharded).run(
            plan, [*optimizer, sf.ClipNorm(1.0), *techniques], None, None
        )
    found = prediction_of(run, own, machine, exact=True, micro_batch=4)
    return {
        "operators": sum(dispatched.values()),
        "threads": len(threads),
        "bytes": [found.peak_bytes, found.peak_by_kind, found.peak_by_phase, found.host_peak_bytes],
        "pieces": [[*each.key, each.bytes, each.host] for each in run.segments],
        "reserved": found.reserved_bytes,
        "numbers": [found.seconds_per_update, found.flops_per_update, *found.timeline.seconds],
    }


def both(name: str, machine: Machine, sharded: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is predicted from some parts of each loop, and from all of them."""
    some = figures(CASES[name], machine, sharded)
    with every_part():
        return some, figures(CASES[name], machine, sharded)


if __name__ == "__main__":
    with machine_of(Target(device="a100-80")) as gpu:
        figures([], gpu)  # what a process makes once is made
        print(json.dumps({name: both(name, gpu) for name in sys.argv[1:]}))
