"""Answers as the planner would give them, without planning."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from snugfit.planner.answers.answer import (
    Alternative,
    Answer,
    Choice,
    FrontierBound,
    FrontierPoint,
    Prediction,
    Rejected,
    Timeline,
)

GIB, MIB, KIB = 2**30, 2**20, 2**10
QLORA = ({"qlora": {"rank": 16, "alpha": 32}}, {"recompute": {}}, {"chunked_loss": {"chunks": 8}})


@cache
def qlora_on_a_4090() -> Answer:
    """An 8B model in 4 bit on 24 GiB: it fits, with two micro-batches an update."""
    timeline = step(
        {"weights": 5_560 * MIB, "optimizer": 320 * MIB, "inputs": 96 * KIB},
        {
            "gradients": 160 * MIB,
            "activations": 4_100 * MIB,
            "temporaries": 1_250 * MIB,
            "workspace": 64 * MIB,
        },
        micro_batches=2,
        layers=32,
        seconds=1.9,
    )
    return Answer(
        fits=True,
        device={"name": "rtx4090", "memory_bytes": 24 * GIB, "calibrated": False, "reserved": 450 * MIB},
        budget_bytes=24 * GIB,
        prediction=prediction(
            timeline,
            {
                "segment": "backward 2",
                "module": "model.layers.30.mlp.down_proj",
                "operator": "aten.mm.default",
            },
            reserved=450 * MIB + 310 * MIB,
            host=9 * GIB,
            flops=197_000_000_000_000,
            share=0.41,
            tokens=4_310.0,
            total=11_400.0,
        ),
        choice=Choice(2, "bf16", QLORA, added=("recompute", "chunked_loss")),
        alternatives=(
            Alternative(
                "recompute every second block", Choice(2, "bf16", QLORA[:2]), 17 * GIB, 19 * GIB, 2.0
            ),
            Alternative("micro-batch 1", Choice(1, "bf16", QLORA), 9 * GIB, 10 * GIB, 2.11),
            Alternative(
                "micro-batch 1, frozen weights streamed from host memory",
                Choice(1, "bf16", (*QLORA, {"stream_frozen": {"to": "host"}})),
                5 * GIB,
                6 * GIB,
                2.74,
            ),
        ),
        rejected=(
            Rejected("as the recipe says", "needs 15.1 GiB more than there is", int(39.1 * GIB), 1.71),
            Rejected("recompute, micro-batch 4", "needs 2.6 GiB more than there is", int(26.6 * GIB), 1.84),
            Rejected(
                "ladder: compile", "compile would be an upper estimate only, and saves 3% of the time", None
            ),
        ),
        why=(
            "As the recipe says it needs 39.1 GiB, 15.1 GiB more than the 24 GiB there are.",
            "recompute brings it to 16.8 GiB at 11% more time; chunked_loss then takes 2.6 GiB of logits away.",
            "Of 14 plans that fit with a margin of 5%, this is the fastest.",
        ),
        command="snugfit train qlora.yaml plan.micro_batch=2 plan.numerics=bf16 'techniques+=[recompute,chunked_loss]'",
        about={
            "recipe": "qlora.yaml",
            "model": "meta-llama/Llama-3.1-8B",
            "parameters": {"total": 8_072_204_288, "trainable": 41_943_040},
            "data": {"train": 48_000},
            "sizes": {"sequence": 2_048, "global_batch": 4},
        },
        rules=(
            "One device: the plan fits on one with 30% to spare; a second would halve the time over nvlink.",
            "Streaming is not worth it: 4,096 tokens a micro-step hide 25 GB/s, but nothing has to leave the device.",
        ),
        planned_seconds=6.2,
    )


@cache
def seventy_billion_that_do_not_fit() -> Answer:
    """A 70B model with AdamW in full on one card of 24 GiB: the nearest plan is far too large."""
    timeline = step(
        {"weights": 34 * GIB, "optimizer": 2 * GIB, "inputs": 64 * KIB},
        {"gradients": GIB, "activations": 8 * GIB, "temporaries": 2 * GIB, "workspace": 64 * MIB},
        micro_batches=16,
        layers=80,
        seconds=71.0,
    )
    needs = {
        "as the recipe says": 1_143,
        "bf16": 702,
        "recompute": 612,
        "8-bit optimizer": 402,
        "offload": 161,
    }
    return replace(
        qlora_on_a_4090(),
        fits=False,
        prediction=prediction(
            timeline,
            {"segment": "backward 1", "module": "model.layers.79.mlp", "operator": "aten.mm.default"},
            reserved=3 * GIB,
            host=161 * GIB,
            flops=28_000_000_000_000_000,
            share=0.28,
            tokens=231.0,
            total=2_140_000.0,
        ),
        choice=Choice(1, "bf16", QLORA, added=("recompute",), fidelity="quantised"),
        alternatives=(),
        rejected=tuple(
            Rejected(name, f"{size - 24:,} GiB more than there are", size * GIB, 60.0)
            for name, size in needs.items()
        ),
        why=("Nothing fits: the frozen weights alone take 34 GiB of 24 GiB.",),
        would_fit={"full": 612 * GIB, "adapters": 148 * GIB, "quantised": 52 * GIB},
        command="snugfit plan big.yaml --memory 52GiB",
        about={
            "recipe": "big.yaml",
            "model": "70B-shaped",
            "parameters": 70_553_706_496,
            "sizes": {"sequence": 4_096},
        },
    )


@cache
def mlp_on_a_cpu() -> Answer:
    """A model of a few thousand parameters, whose budget is far above whatever it needs."""
    timeline = step(
        {"weights": 26 * KIB, "optimizer": 52 * KIB, "inputs": 6 * KIB},
        {"gradients": 26 * KIB, "activations": 18 * KIB, "temporaries": 12 * KIB},
        micro_batches=1,
        layers=2,
        seconds=0.00074,
    )
    return Answer(
        fits=True,
        device={"name": "this CPU (2 cores)", "memory_bytes": 4 * GIB, "calibrated": True},
        budget_bytes=4 * GIB,
        prediction=prediction(
            timeline,
            {"segment": "optimizer", "module": "", "operator": "aten._foreach_addcdiv_.Scalar"},
            reserved=0,
            host=214 * MIB,
            flops=2_600_000,
            share=0.031,
            tokens=None,
            total=None,
        ),
        choice=Choice(32, "fp32", ()),
        command="snugfit train mlp.yaml",
        about={"recipe": "mlp.yaml", "model": "shop.models:mlp", "parameters": 6_538},
        why=("The recipe fits as it is.",),
        planned_seconds=0.4,
    )


def prediction(
    timeline: Timeline,
    peak_at: dict[str, str],
    *,
    reserved: int,
    host: int,
    flops: int,
    share: float,
    tokens: float | None,
    total: float | None,
) -> Prediction:
    """The prediction that goes with a timeline; `reserved` is what the device has to have besides."""
    points = list(zip(*timeline.bytes_by_kind.values(), strict=True))
    highest = max(points, key=sum)
    seconds = timeline.seconds[-1]
    return Prediction(
        peak_bytes=sum(highest),
        peak_by_kind=dict(zip(timeline.bytes_by_kind, highest, strict=True)),
        peak_at=peak_at,
        reserved_bytes=sum(highest) + reserved,
        host_peak_bytes=host,
        seconds_per_update=seconds,
        seconds_total=total,
        tokens_per_second=tokens,
        examples_per_second=4 / seconds,
        flops_per_update=flops,
        share_of_peak=share,
        confidence={
            "memory": "exact operators, workspace from a table",
            "time": "uncalibrated, from the maker's sheet",
        },
        timeline=timeline,
    )


def step(
    always: dict[str, int], during: dict[str, int], *, micro_batches: int, layers: int, seconds: float
) -> Timeline:
    """The memory of an update: activations grow in forward and shrink in backward, temporaries come and go."""
    draw = random.Random(0)
    names = [*always, *during]
    points: list[tuple[str, dict[str, float]]] = []

    def add(segment: str, **levels: float) -> None:
        points.append((segment, dict.fromkeys(during, 0.0) | levels))

    grown = 0.0
    for micro_batch in range(1, micro_batches + 1):
        tag = f" {micro_batch}" if micro_batches > 1 else ""
        for layer in range(layers):
            for part in range(12):
                done = (layer + part / 12) / layers
                add(f"forward{tag}", activations=done, gradients=grown, temporaries=draw.random() * 0.5)
        for _ in range(6):
            add(f"loss{tag}", activations=1.0, gradients=grown, temporaries=0.8)
        for layer in range(layers):
            for part in range(24):
                done = (layer + part / 24) / layers
                grown = max(grown, done)
                workspace = float(part % 8 == 0)
                spike = 1.0 if layer == 1 and part == 9 else draw.random() * 0.7
                add(
                    f"backward{tag}",
                    activations=1 - done,
                    gradients=grown,
                    temporaries=spike,
                    workspace=workspace,
                )
    for part in range(24):
        add("optimizer", gradients=1.0, temporaries=0.9 * (part % 3 == 1))
    add("optimizer")
    every = seconds / (len(points) - 1)
    kinds = {
        name: tuple(always.get(name) or int(levels.get(name, 0.0) * during[name]) for _, levels in points)
        for name in names
    }
    return Timeline(
        tuple(segment for segment, _ in points), tuple(place * every for place in range(len(points))), kinds
    )


def with_a_frontier() -> Answer:
    """Plans of two levels, a third that does not fit, and a fourth that was not looked at."""
    base = qlora_on_a_4090()

    def point(level: str, what: str, reserved: float, seconds: float, fits: bool = True) -> FrontierPoint:
        choice = replace(base.choice, fidelity=level)
        size = round(reserved * GIB)
        return FrontierPoint(
            level, what, f"{level} + {what}", choice, size, GIB, seconds, 2000 / seconds, fits
        )

    return replace(
        base,
        choice=replace(base.choice, fidelity="adapters"),
        frontier=(
            point("full", "smallest", 31.0, 4.0, fits=False),
            point("mixed", "fastest", 22.0, 3.0),
            point("mixed", "smallest", 15.0, 3.6),
            point("adapters", "fastest", 11.7, 1.9),
            point("adapters", "smallest", 7.0, 2.8),
        ),
        bounds=(FrontierBound("quantized", 1.2, 3_600.0),),
    )
