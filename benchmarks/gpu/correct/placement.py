"""Streams and offloads, bit for bit: beside the same run that is resident, and under delays that a missing wait would not survive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

from checks import Settings, check, require
from delays import delayed
from material import (
    LLAMAS,
    deterministic,
    differing,
    error_between,
    llama,
    on,
    technique,
    tokens_window,
    weights,
)

UPDATES = 3
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
EXACT = ("weight_streaming", "activation_offload")
"""What computes on the device in the same order as without them."""


@contextmanager
def late_weights() -> Iterator[None]:
    """Temporarily let slots have the weights of the block before at each third copy, as where the computation does not wait for it."""
    from snugfit.kit.streaming.slot import Slot

    copy: Callable[..., Any] = Slot._copy
    calls, before = 0, None

    def late(self: Any, source: Any, busy: Any) -> None:
        nonlocal calls, before
        calls += 1
        alike = before is not None and before.shape == source.shape
        copy(self, before if alike and calls % 3 == 0 else source, busy)
        before = source

    with mock.patch.object(Slot, "_copy", late):
        yield


@contextmanager
def late_activations() -> Iterator[None]:
    """Temporarily let backward have the memory of activations before their copies have arrived."""
    from snugfit.techniques.placement.activation_offload import Offload

    bring: Callable[..., Any] = Offload._to_device
    calls = 0

    def late(self: Any, copy: Any) -> None:
        nonlocal calls
        here = copy.flat is None
        bring(self, copy)
        calls += here
        if here and calls % 5 == 0:
            copy.flat.zero_()

    with mock.patch.object(Offload, "_to_device", late):
        yield


@contextmanager
def one_late_gradient() -> Iterator[None]:
    """Temporarily let the host add up a gradient before its copy has arrived."""
    from snugfit.core.gradients import HostGradients

    add: Callable[..., Any] = HostGradients._add
    calls = 0

    def late(self: Any, leaving: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            leaving.arriving.zero_()
        add(self, leaving)

    with mock.patch.object(HostGradients, "_add", late):
        yield


def trained(
    settings: Settings,
    techniques: Sequence[Any],
    frozen: bool,
    around: AbstractContextManager[Any] | None = None,
) -> tuple[dict[str, Any], list[float]]:
    """Return the weights and losses after some updates of two micro-batches."""
    from snugfit import Step
    from snugfit.kit.placement import place_

    shape, tokens = settings.size(("small", 256), ("toy", 16))
    model = llama(shape, tokens, "cpu")
    if frozen:  # as under adapters: what is streamed has no gradient
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" in name or "lm_head" in name)
    stays = [name for each in techniques for name in each.stays(model)]
    step = Step(
        place_(model, settings.device, stays),
        technique("adamw", learning_rate=1e-3),
        "causal_lm",
        techniques,
        micro_batch=2,
        nominal=float(4 * tokens),
        device=settings.device,
    )
    with around or nullcontext():
        losses = []
        for number in range(UPDATES):
            done = step(on(settings.device, tokens_window(LLAMAS[shape]["vocabulary"], 4, tokens, number)))
            require(done.applied, f"update {number} was not applied: {done.refusal or 'not finite'}")
            losses.append(done.loss)
    return {name: tensor.cpu() for name, tensor in weights(step.model).items()}, losses


def same_under_delays(
    settings: Settings, names: Sequence[str], frozen: bool, **more: Any
) -> Mapping[str, Any]:
    """Compare a run with and without the first technique, and with delays of both kinds."""
    deterministic()
    # what is the host's arithmetic is compared in fp32: AdamW makes whole steps of the rounding of gradients that are nearly 0
    precision = ["bf16"] if settings.cuda and names[0] in EXACT else []
    others = [technique(name) for name in (*names[1:], *precision)]
    changed = [technique(names[0], **more), *others]
    plain, _ = trained(settings, others, frozen)
    whole, losses = trained(settings, changed, frozen)
    figures: dict[str, Any] = {"losses": losses}
    apart = differing(plain, whole)
    if names[0] in EXACT:
        require(
            not apart, f"{names[0]}: {len(apart)} weights are not those of the resident run", apart=apart[:5]
        )
    else:  # the optimizer's arithmetic, or the sum, is the host's
        figures["error"] = error_between(whole, plain)
        require(
            figures["error"] < 1e-3, f"{names[0]}: the weights are {figures['error']:.2g} away", **figures
        )
    for late in ("copies", "computation"):
        around = delayed(late)  # type: ignore[arg-type]
        with around as seen:
            slow, slow_losses = trained(settings, changed, frozen)
        figures[f"late {late}"] = {"copies": seen.copies, "on a stream of their own": seen.on_own_stream}
        apart = differing(whole, slow)
        message = f"{names[0]}: with late {late} {len(apart)} weights have other bits"
        require(not apart and slow_losses == losses, message, apart=apart[:5], **figures)
    return figures


def copies_beside(figures: Mapping[str, Any], settings: Settings) -> None:
    """Require that copies ran on streams of their own, or the delays have shown nothing."""
    if settings.cuda:
        require(
            figures["late copies"]["on a stream of their own"] > 0,
            "no copy ran on a stream of its own",
            **figures,
        )


@check("weight streaming is bit for bit", 60, environment=DETERMINISTIC, plants={"stream": late_weights})
def weight_streaming(settings: Settings) -> Mapping[str, Any]:
    figures = same_under_delays(settings, ["weight_streaming"], frozen=True)
    copies_beside(figures, settings)
    return figures


@check("weight streaming with recomputation is bit for bit", 60, environment=DETERMINISTIC)
def streaming_and_recompute(settings: Settings) -> Mapping[str, Any]:
    return same_under_delays(settings, ["weight_streaming", "recompute"], frozen=True)


@check("weight streaming from a file is bit for bit", 60, environment=DETERMINISTIC)
def streaming_from_file(settings: Settings) -> Mapping[str, Any]:
    return same_under_delays(
        settings, ["weight_streaming"], frozen=True, folder=str(settings.folder / "weights")
    )


@check(
    "activation offload is bit for bit",
    60,
    environment=DETERMINISTIC,
    plants={"activation": late_activations},
)
def activation_offload(settings: Settings) -> Mapping[str, Any]:
    figures = same_under_delays(
        settings, ["activation_offload"], frozen=False, min_bytes=settings.size(65536, 1)
    )
    copies_beside(figures, settings)
    return figures


@check("activation offload with recomputation is bit for bit", 60, environment=DETERMINISTIC)
def offload_and_recompute(settings: Settings) -> Mapping[str, Any]:
    return same_under_delays(settings, ["activation_offload", "recompute"], frozen=False, min_bytes=1)


@check("optimizer offload keeps its bits under delays", 60, environment=DETERMINISTIC)
def optimizer_offload(settings: Settings) -> Mapping[str, Any]:
    return same_under_delays(settings, ["optimizer_offload"], frozen=False)


@check(
    "gradient offload keeps its bits under delays",
    60,
    environment=DETERMINISTIC,
    plants={"gradient": one_late_gradient},
)
def gradient_offload(settings: Settings) -> Mapping[str, Any]:
    return same_under_delays(settings, ["gradient_offload", "optimizer_offload"], frozen=False)
