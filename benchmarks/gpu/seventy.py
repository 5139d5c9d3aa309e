"""A 70B-shaped nf4 model streamed from host memory, LoRA on all linear layers, 4,096 tokens a micro-batch, under 24 GiB.

Then the same layers resident, without a cap, to see what streaming costs; and the copies by themselves, so that the figure
for another card and link can be predicted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from shapes import DEVICE, SHAPES, Result, cap, llama, measure, window
from torch import nn

from snugfit import Step, Technique
from snugfit.core.batch import Batch
from snugfit.core.blocks import repeated_blocks
from snugfit.core.technique import Card, Context, Seams
from snugfit.techniques import find
from snugfit.techniques.placement.weight_streaming import WeightStreaming, stream_weights


@dataclass(frozen=True)
class Measured(Technique):
    """Weight streaming whose stream can be asked for its copies."""

    streams: list[Any]
    resident: int = 0
    card: ClassVar[Card] = WeightStreaming.card

    def stays(self, model: nn.Module) -> Collection[str]:
        return tuple(repeated_blocks(model))

    def seams(self, context: Context) -> Seams:
        stream = stream_weights(context.model, context.device, resident=self.resident, timed=True)
        self.streams.append(stream)

        @contextmanager
        def modules(batch: Batch) -> Iterator[None]:
            with stream.running():
                yield

        return Seams(modules=modules)


def main() -> None:
    result = Result()
    shape, tokens = ("toy", 32) if result.toy else ("70b", 4096)
    layers = SHAPES[shape]["layers"]
    model = llama(shape, tokens, layers_on=torch.device("cpu"))
    find("lora")(rank=16, alpha=32.0).prepare(model)
    data = window(shape, 1, tokens)

    def trained(resident: int, *more: Technique) -> dict[str, Any]:
        streams: list[Any] = []
        step = Step(
            model,
            find("adamw")(learning_rate=1e-4),
            "causal_lm",
            [
                Measured(streams, resident),
                find("recompute")(),
                find("chunked_loss")(),
                *([find("bf16")()] if DEVICE.type == "cuda" else []),
                *more,
            ],
            nominal=float(tokens),
            device=DEVICE,
        )
        found = measure(lambda: step(data).loss, tokens)
        (stream,) = streams
        updates = len(found["losses"])
        return {
            **found,
            "copies_per_micro_batch": stream.copies / updates,
            "copied_bytes_per_micro_batch": stream.copied_bytes / updates,
            "copy_seconds_per_micro_batch": stream.seconds() / updates,
            "host_bytes": stream.host_bytes,
            "slot_bytes": stream.slot_bytes,
        }

    cap(24)
    result["streamed"] = trained(0)
    result["streamed_checkpoints_on_host"] = trained(0, find("activation_offload")())
    cap(1e9)
    result["resident"] = trained(layers)
    one, other = (sorted(result[name]["seconds"])[1] for name in ("streamed", "resident"))
    result["streaming_overhead"] = one / other - 1
    copied = (
        result["streamed"]["copied_bytes_per_micro_batch"]
        / result["streamed"]["copy_seconds_per_micro_batch"]
    )
    result["link_bytes_per_second"] = copied


if __name__ == "__main__":
    main()
