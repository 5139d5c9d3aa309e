"""Compilation with two micro-batches and two updates: the gradient of the model as it is, or a refusal that says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, Skip, check, require
from material import LLAMAS, error_between, llama, on, technique, tokens_window

UPDATES = 2


@contextmanager
def first_micro_batch_lost() -> Iterator[None]:
    """Temporarily let the second micro-batch overwrite the first one's gradients, as memory that graphs share would."""
    import torch

    backward = torch.autograd.backward

    def overwriting(*args: Any, **kwargs: Any) -> Any:
        for parameter in PARAMETERS:
            parameter.grad = None
        return backward(*args, **kwargs)

    with mock.patch.object(torch.autograd, "backward", overwriting):
        yield


PARAMETERS: list[Any] = []
"""Of the step that is compared, for the fault that is planted."""


def trained(settings: Settings, techniques: Sequence[Any]) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the gradients of each update, and the losses."""
    from snugfit import Step
    from tests.laws.problems import gradients

    shape, tokens = settings.size(("small", 128), ("toy", 16))
    step = Step(
        llama(shape, tokens, settings.device),
        technique("sgd", learning_rate=0.05),
        "causal_lm",
        techniques,
        micro_batch=4,
        nominal=float(8 * tokens),
    )
    PARAMETERS[:] = step.parameters if any(each.card.name == "compile" for each in techniques) else []
    all_gradients, losses = [], []
    for number in range(UPDATES):
        done = step(on(settings.device, tokens_window(LLAMAS[shape]["vocabulary"], 8, tokens, number)))
        require(done.applied, f"update {number} was not applied")
        all_gradients.append({name: tensor.cpu() for name, tensor in gradients(step).items()})
        losses.append(done.loss)
    return all_gradients, losses


def as_eager(
    settings: Settings, others: Sequence[str] = (), tolerance: float = 2e-3, **more: Any
) -> Mapping[str, Any]:
    """Compare gradients with and without compilation; a refusal is said, and is no fault."""
    from snugfit.errors import SnugfitError

    techniques = [technique(name) for name in others]
    if not settings.cuda:
        more = {"backend": "aot_eager", "per_block": more.get("per_block", True)}
    eager, losses = trained(settings, techniques)
    try:
        compiled, those = trained(settings, [technique("compile", **more), *techniques])
    except SnugfitError as error:
        return {"refused": str(error)}
    errors = [error_between(one, other) for one, other in zip(compiled, eager, strict=True)]
    figures = {"errors": errors, "losses": [losses, those]}
    require(
        max(errors) < tolerance, f"compiled gradients are {max(errors):.2g} away from eager ones", **figures
    )
    return figures


@check("compile gives the eager gradient", 120, plants={"compile": first_micro_batch_lost})
def default(settings: Settings) -> Mapping[str, Any]:
    return as_eager(settings)


@check("compile with reduce-overhead gives the eager gradient, or is refused", 120)
def reduce_overhead(settings: Settings) -> Mapping[str, Any]:
    if not settings.cuda:
        raise Skip("a mode of CUDA's graphs")
    return as_eager(settings, mode="reduce-overhead")


@check("compile with max-autotune gives the eager gradient, or is refused", 180)
def max_autotune(settings: Settings) -> Mapping[str, Any]:
    if not settings.cuda:
        raise Skip("a mode of CUDA's graphs")
    return as_eager(settings, mode="max-autotune")


@check("compile of the whole model gives the eager gradient", 120)
def whole_model(settings: Settings) -> Mapping[str, Any]:
    if settings.toy:
        raise Skip("takes too long for a toy; blocks are compiled")
    return as_eager(settings, per_block=False)


@check("compile under bf16 with recomputation gives the eager gradient", 120)
def under_bf16(settings: Settings) -> Mapping[str, Any]:
    return as_eager(settings, ["bf16", "recompute"], tolerance=0.05)


@check("compile under tf32 gives the eager gradient", 120)
def under_tf32(settings: Settings) -> Mapping[str, Any]:
    if not settings.cuda:
        raise Skip("tf32 is a type of CUDA's")
    return as_eager(settings, ["tf32"], tolerance=0.05)
