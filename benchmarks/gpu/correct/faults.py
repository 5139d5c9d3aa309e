"""The faults that a device may have: numbers that are not finite, waits that nobody asked for, statistics that move."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, check, require
from material import LLAMAS, differing, llama, on, technique, tokens_window, weights

WAITS = 1
"""Times that an update may wait for the device: to read whether it is finite."""


@check("a row that is not a number changes nothing", 40)
def row_not_a_number(settings: Settings) -> Mapping[str, Any]:
    """Send a window with one NaN among good ones, in each precision; all weights and states stay, and training goes on."""
    import torch

    from snugfit import Step
    from tests.laws.problems import differences, saved

    figures: dict[str, Any] = {}
    size = settings.size(1024, 16)
    for precision in ("fp32", "bf16", "fp16"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 3))
        techniques = [technique("ema"), technique("clip_norm")]
        techniques += [] if precision == "fp32" else [technique(precision)]
        step = Step(
            model.to(settings.device),
            technique("adamw", learning_rate=1e-3),
            "cross_entropy",
            techniques,
            micro_batch=4,
        )
        source = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(16, size, generator=source), torch.arange(16) % 3
        good = on(settings.device, (inputs, labels))
        broken = inputs.clone()
        broken[5, 3] = math.nan
        step(good)
        before, weights_before = saved(step), weights(step.model)
        done = step(on(settings.device, (broken, labels)))
        moved = differing(weights_before, weights(step.model))
        states = [
            path for path in differences(before, saved(step)) if "/optimizer" in path and "step" in path
        ]
        figures[precision] = {"applied": done.applied, "moved": moved, "steps counted": states}
        require(
            not done.applied and not moved and not states,
            f"{precision}: a NaN row changed weights or states",
            **figures,
        )
        # fp16 halves its scale and may skip on
        applied = [step(good).applied for _ in range(4)]
        require(any(applied), f"{precision}: after a NaN row no window was applied any more", **figures)
    return figures


@contextmanager
def a_wait_in_forward() -> Iterator[None]:
    """Temporarily read a number of the device in each forward."""
    from snugfit.step.step import Step

    forward = Step.forward

    def reading(self: Any, batch: Any) -> Any:
        next(iter(self.model.parameters())).detach().sum().item()
        return forward(self, batch)

    with mock.patch.object(Step, "forward", reading):
        yield


class Waits:
    """Places that wait for the device: on CUDA as torch warns of them, on a CPU where a tensor becomes a number."""

    def __init__(self, settings: Settings) -> None:
        self._cuda = settings.cuda
        self.places: list[str] = []

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        places: list[str] = []
        if self._cuda:
            with self._by_torch(places):
                yield places
            return
        import torch

        methods = {name: getattr(torch.Tensor, name) for name in ("item", "tolist", "__bool__")}

        def seeing(name: str) -> Any:
            def call(tensor: Any, *args: Any) -> Any:
                if name == "__bool__" or torch.is_floating_point(tensor):
                    places.append(place())
                return methods[name](tensor, *args)

            return call

        with (
            mock.patch.object(torch.Tensor, "item", seeing("item")),
            mock.patch.object(torch.Tensor, "tolist", seeing("tolist")),
            mock.patch.object(torch.Tensor, "__bool__", seeing("__bool__")),
        ):
            yield places

    @contextmanager
    def _by_torch(self, places: list[str]) -> Iterator[None]:
        import torch

        def seen(message: Any, *args: Any, **kwargs: Any) -> None:
            if "called a synchronizing" in str(message):
                places.append(place())

        with warnings.catch_warnings(), mock.patch.object(warnings, "showwarning", seen):
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")


def place() -> str:
    """Return the innermost lines of the call that are Snugfit's or transformers'."""
    frames = [
        f"{frame.filename.rpartition(package)[2]}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_stack()
        for package in ("/src/snugfit/", "/site-packages/")
        if package in frame.filename and "/torch/" not in frame.filename
    ]
    return " < ".join(reversed(frames[-5:]))


CASES: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "bf16": ("bf16",),
    "bf16, clip_norm": ("bf16", "clip_norm"),
    "bf16, clip_norm, ema, cosine": ("bf16", "clip_norm", "ema", "cosine"),
    "bf16, recompute, chunked_loss": ("bf16", "recompute", "chunked_loss"),
    "bf16, activation_offload": ("bf16", "activation_offload"),
    "bf16, packing": ("bf16", "packing"),
    "fp16, clip_norm": ("fp16", "clip_norm"),
}


def host_window(settings: Settings, vocabulary: int, tokens: int, padded: int) -> Any:
    """Return a window as a loader makes it, on the host; every second row has padding."""
    from snugfit.core.batch import Batch

    data = tokens_window(vocabulary, 8, tokens)
    data["attention_mask"] = data["input_ids"] * 0 + 1
    if padded:
        data["attention_mask"][1::2, -padded:] = 0
        data["labels"][1::2, -padded:] = -100
    batch = Batch.of(data)
    return batch.pin_memory() if settings.cuda else batch


@check("an update waits for the device once", 60, plants={"wait": a_wait_in_forward})
def waits(settings: Settings) -> Mapping[str, Any]:
    """Count the waits of an update of two micro-batches, with padding and without, after the first updates; each place is said."""
    from snugfit import Step

    shape, tokens = settings.size(("small", 128), ("toy", 16))
    figures: dict[str, Any] = {}
    for case, names in CASES.items():
        step = Step(
            llama(shape, tokens, settings.device),
            technique("adamw", learning_rate=1e-3),
            "causal_lm",
            [technique(name) for name in names],
            micro_batch=4,
            nominal=float(8 * tokens),
            total_updates=10,
        )
        windows = [host_window(settings, LLAMAS[shape]["vocabulary"], tokens, padded) for padded in (0, 3)]
        for _ in range(2):
            for window in windows:
                step(window)
        most_places: list[str] = []
        for window in windows:
            with Waits(settings).counted() as places:
                step(window)
            most_places = max(most_places, places, key=len)
        figures[case] = {"waits": len(most_places), "places": sorted({*most_places})}
        settings.note(figures)
    limit = (
        WAITS if settings.cuda else 4
    )  # on a CPU loss, weight, count and norm are read one by one, at no cost
    most = {case: row["waits"] for case, row in figures.items() if row["waits"] > limit}
    require(not most, f"updates wait for the device more than {limit} times: {most}", **figures)
    return figures


@check("batch norm and dropout of a split window are those of the law", 40)
def buffers(settings: Settings) -> Mapping[str, Any]:
    """Train a net with batch norm: two runs have the same statistics, and a window without an update moves none."""
    import torch

    from snugfit import Step

    def step() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 5),
        )  # fmt: skip
        return Step(model.to(settings.device), technique("sgd"), "cross_entropy", micro_batch=4, seed=3)

    source = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(8, 3, 12, 12, generator=source), torch.arange(8) % 5
    one, other = step(), step()
    torch.manual_seed(17)  # the state around a step has no part in it
    losses = [each(on(settings.device, (inputs, labels))).loss for each in (one, other)]
    statistics = [
        {name: buffer.clone() for name, buffer in each.model.named_buffers()} for each in (one, other)
    ]
    require(
        losses[0] == losses[1] and not differing(*statistics), "two runs of one seed differ", losses=losses
    )
    broken = inputs.clone()
    broken[0, 0, 0, 0] = math.nan
    one(on(settings.device, (broken, labels)))
    after = {name: buffer.clone() for name, buffer in one.model.named_buffers()}
    moved = differing(statistics[0], after)
    require(not moved, "a window that was skipped moved batch norm's statistics", moved=moved)
    return {"losses": losses}
