"""Models larger than the memory they are given: 8B under 4 GB, 70B under 14 GiB, with the link's rate and what hides of the copies."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

from checks import Peaks, Settings, check, release, require, spread, wait
from material import GIB, LLAMAS, memory_fraction, on, technique, tokens_window
from quantized import lora_step, nf4_llama

from snugfit import Technique
from snugfit.core.technique import Card, Context, Seams
from snugfit.techniques.placement.weight_streaming import WeightStreaming, stream_weights

SOUP = {"tokens_per_second": 119.6, "gigabytes": 3.32, "for": "8B on a laptop's card"}
"""Published by Soup, not measured here."""
LEAST_RATE = 0.25
"""Of 70B streamed, beside the same resident: below, streaming is no way to train."""


@dataclass(frozen=True)
class Measured(Technique):
    """Weight streaming whose stream can be asked for its copies."""

    streams: list[Any]
    resident: int = 0
    card: ClassVar[Card] = WeightStreaming.card

    def stays(self, model: Any) -> Collection[str]:
        return WeightStreaming().stays(model)

    def seams(self, context: Context) -> Seams:
        stream = stream_weights(context.model, context.device, resident=self.resident, timed=True)
        self.streams.append(stream)

        @contextmanager
        def modules(batch: Any) -> Iterator[None]:
            with stream.running():
                yield

        return Seams(modules=modules)


@contextmanager
def everything_resident() -> Iterator[None]:
    """Temporarily stream nothing, so that no copy is made."""
    from snugfit.kit.streaming.weight_stream import WeightStream

    make = WeightStream.__init__

    def resident(self: Any, model: Any, device: Any, blocks: Any, *args: Any, **kwargs: Any) -> None:
        make(self, model, device, blocks, len(blocks))

    with mock.patch.object(WeightStream, "__init__", resident):
        yield


def trained(
    settings: Settings, model: Any, shape: str, tokens: int, resident: int, repeats: int, *more: Any
) -> dict[str, Any]:
    """Return the figures of some updates of one row."""
    streams: list[Any] = []
    step = lora_step(settings, model, 1, tokens, 1, Measured(streams, resident), *more)
    data = on(settings.device, tokens_window(LLAMAS[shape]["vocabulary"], 1, tokens))
    peaks = Peaks(settings.device)
    losses = [step(data).loss]
    (stream,) = streams
    copies, copied, copying = stream.copies, stream.copied_bytes, stream.seconds()
    peaks.begin()
    seconds = []
    for _ in range(repeats):
        wait(settings.device)
        began = time.perf_counter()
        losses.append(step(data).loss)
        wait(settings.device)
        seconds.append(time.perf_counter() - began)
    figures: dict[str, Any] = {
        "seconds": spread(seconds),
        "tokens_per_second": tokens / spread(seconds)["median"],
        "losses": losses,
        "copies per update": (stream.copies - copies) / repeats,
        "copied_bytes per update": (stream.copied_bytes - copied) / repeats,
        "copying seconds per update": (stream.seconds() - copying) / repeats,
        "host_bytes": stream.host_bytes,
        "slot_bytes": stream.slot_bytes,
        **peaks.read(),
    }
    if figures["copying seconds per update"]:
        figures["link_bytes_per_second"] = (
            figures["copied_bytes per update"] / figures["copying seconds per update"]
        )
    finite = all(loss == loss and abs(loss) != float("inf") for loss in losses)
    require(finite, "a loss is not finite", **figures)
    return figures


@check(
    "8B under a budget of 4 GB",
    120,
    alone=True,
    modules=("peft", "bitsandbytes"),
    plants={"resident": everything_resident},
)
def under_4_gb(settings: Settings) -> Mapping[str, Any]:
    """Train adapters on an 8B model whose blocks are streamed, with no more memory than 4 GB, at sequences of 512."""
    shape, tokens = settings.size(("8b", 512), ("toy", 16))
    if settings.cuda:
        memory_fraction(4e9 / GIB)
    model = nf4_llama(shape, tokens, settings.device, "cpu")
    streamed = trained(settings, model, shape, tokens, 0, settings.size(5, 3))
    figures = {"snugfit": streamed, "published": SOUP, "tokens": tokens, "shape": dict(LLAMAS[shape])}
    require(streamed["copies per update"] > 0, "nothing was streamed", **figures)
    peak = streamed.get("peak_reserved_bytes", 0)
    require(peak <= 4e9, f"{peak / 1e9:.2f} GB were reserved", **figures)
    return figures


@check("70B streamed under 14 GiB", 170, alone=True, modules=("peft", "bitsandbytes"))
def seventy(settings: Settings) -> Mapping[str, Any]:
    """Train adapters on a streamed 70B model, 4,096 tokens a micro-batch, with what recomputation keeps in host memory; then the same with
    all blocks resident, to see what streaming costs.
    """
    shape, tokens = settings.size(("70b", 4096), ("toy", 16))
    layers = LLAMAS[shape]["layers"]
    if settings.cuda:
        given = os.environ.get("SNUGFIT_HOST_GIB")  # a machine whose memory grows says less at first
        host = float(given) * GIB if given else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        require(host > 80 * GIB, f"needs 80 GiB of host memory, and there are {host / GIB:.0f}")
    figures: dict[str, Any] = {"tokens": tokens, "shape": dict(LLAMAS[shape])}
    repeats = settings.size(5, 3)
    for name, gib, resident in (("streamed", 14, 0), ("resident", 1e9, layers)):
        if settings.cuda:
            memory_fraction(gib)
        model = nf4_llama(shape, tokens, settings.device, "cpu")
        offload = technique("activation_offload", min_bytes=settings.size(2**20, 1))
        figures[name] = trained(settings, model, shape, tokens, resident, repeats, offload)
        settings.note(figures)
        del model
        release(settings.device)
    peak = figures["streamed"].get("peak_reserved_bytes", 0)
    one, other = (figures[name]["seconds"]["median"] for name in ("streamed", "resident"))
    copying = figures["streamed"]["copying seconds per update"]
    figures["streaming costs"] = one / other - 1
    figures["share of copies hidden"] = min(1.0, max(0.0, 1 - (one - other) / copying)) if copying else None
    require(peak <= 14 * GIB, f"{peak / GIB:.1f} GiB were reserved", **figures)
    require(
        not settings.cuda or other / one >= LEAST_RATE,
        f"streaming takes {one / other:.1f} times the time",
        **figures,
    )
    return figures
