"""Strategies for several GPUs in a group of one rank: the same update, by NCCL's calls, as alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from checks import Settings, check, require
from material import LLAMAS, error_between, llama, on, technique, tokens_window

UPDATES = 3


@contextmanager
def gradients_divided() -> Iterator[None]:
    """Temporarily halve what gradients add up to, in DDP's buckets and in one message, as where sums over ranks were taken for means."""
    from snugfit.strategies import ddp, gradient_sums

    add: Any = ddp._sum
    copy: Any = gradient_sums.copy_

    def halved(state, bucket):  # torch compares annotations as objects, which postponed ones are not
        bucket.buffer().mul_(0.5)
        return add(state, bucket)

    def copy_halved(to: Any, sums: Any) -> None:
        copy(to, [each * 0.5 for each in sums])

    with mock.patch.object(ddp, "_sum", halved), mock.patch.object(gradient_sums, "copy_", copy_halved):
        yield


@contextmanager
def group(settings: Settings) -> Iterator[None]:
    """Temporarily be the one rank of a group that meets in a file."""
    import torch
    import torch.distributed as dist

    if settings.cuda:
        torch.cuda.set_device(0)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if settings.cuda else "gloo",
        init_method=f"file://{settings.folder / 'meeting'}",
        rank=0,
        world_size=1,
        **({"device_id": torch.device("cuda", 0)} if settings.cuda else {}),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def trained(settings: Settings, strategy: Any, precision: list[Any]) -> tuple[dict[str, Any], list[float]]:
    from snugfit import Step
    from snugfit.kit.sharded_tensors import whole

    shape, tokens = settings.size(("small", 128), ("toy", 16))
    step = Step(
        llama(shape, tokens, settings.device),
        technique("sgd", learning_rate=0.05),  # which shows the scale of a gradient
        "causal_lm",
        precision,
        micro_batch=2,
        nominal=float(4 * tokens),
        strategy=strategy,
    )
    losses = []
    for number in range(UPDATES):
        window = tokens_window(LLAMAS[shape]["vocabulary"], 4, tokens, number)
        done = step(on(settings.device, window))
        require(done.applied, f"update {number} was not applied")
        losses.append(done.loss)
    return {name: whole(parameter).cpu().clone() for name, parameter in step.model.named_parameters()}, losses


def as_alone(settings: Settings, name: str, **changes: Any) -> Mapping[str, Any]:
    """Compare a strategy's weights after some updates with those without one; `changes` are of its fields."""
    from snugfit.strategies.base import Strategy
    from snugfit.strategies.registry import STRATEGIES, mesh_of

    figures: dict[str, Any] = {}
    precisions = {"fp32": [], "bf16": [technique("bf16")]}
    if settings.toy:
        precisions.pop("bf16")
    with group(settings):
        for precision, techniques in precisions.items():
            alone, losses = trained(settings, Strategy(), list(techniques))
            strategy = replace(STRATEGIES[name](mesh_of(settings.device, (1,))), **changes)
            weights, those = trained(settings, strategy, list(techniques))
            figures[precision] = {"error": error_between(weights, alone), "losses": [losses, those]}
            limit = 1e-4 if precision == "fp32" else 0.02
            require(
                figures[precision]["error"] < limit,
                f"{name}: other weights than alone in {precision}",
                **figures,
            )
            apart = max(abs(one - other) for one, other in zip(losses, those, strict=True))
            require(apart < limit * losses[0], f"{name}: other losses than alone in {precision}", **figures)
    return figures


@check("ddp in a group of one rank trains as alone", 60, plants={"ranks": gradients_divided})
def ddp(settings: Settings) -> Mapping[str, Any]:
    return as_alone(settings, "ddp", at_once_bytes=0)


@check("one message of gradients leaves one rank's as they are", 60, plants={"message": gradients_divided})
def one_message(settings: Settings) -> Mapping[str, Any]:
    import torch
    from torch import nn

    from snugfit.strategies.gradient_sums import add_up_gradients_

    generator = torch.Generator().manual_seed(0)
    parameters = []
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((3, 5), (7,), ()):
            parameter = nn.Parameter(torch.zeros(shape, dtype=dtype, device=settings.device))
            parameter.grad = torch.randn(shape, generator=generator).to(parameter)
            parameters.append(parameter)
    parameters[1].grad = None  # not reached by any rank
    before = [None if each.grad is None else each.grad.clone() for each in parameters]
    scalars = [torch.tensor(value, device=settings.device) for value in (2.5, 4.0)]
    with group(settings):
        sums = add_up_gradients_(parameters, scalars)
    require(sums is not None, "the scalars were not sent")
    figures = {"scalars": [float(each) for each in sums or ()]}
    require(figures["scalars"] == [2.5, 4.0], "other scalars than were sent", **figures)
    for parameter, own in zip(parameters, before, strict=True):
        alike = parameter.grad is None if own is None else torch.equal(parameter.grad, own)
        require(alike, f"another gradient of shape {tuple(parameter.shape)} in {parameter.dtype}", **figures)
    return figures


@check("fsdp in a group of one rank trains as alone", 60)
def fsdp(settings: Settings) -> Mapping[str, Any]:
    return as_alone(settings, "fsdp")


@check("fsdp-zero2 in a group of one rank trains as alone", 60)
def zero2(settings: Settings) -> Mapping[str, Any]:
    return as_alone(settings, "fsdp-zero2")


@check("fsdp-offload in a group of one rank trains as alone", 60)
def offload(settings: Settings) -> Mapping[str, Any]:
    return as_alone(settings, "fsdp-offload")
