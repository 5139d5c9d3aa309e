"""Pitfalls of layers, as one forward shows them: inputs of a large scale, biases that a norm takes away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.subject import listed

LARGE = 10.0
"""A root mean square of what the first layer gets, which layers are drawn for 1 of. Glorot and Bengio 2010; He et al. 2015, arXiv:1502.01852."""

_LAYERS = (nn.Linear, _ConvNd)


@dataclass
class SeenLayers:
    """The layers of one forward.

    Args:
        first: name of the first one with a matrix.
        scale: root mean square of what it got.
        smallest, largest: deviations of the columns that it got, where it got columns.
        before_norm: names of layers with a bias that trains, whose outputs went into a norm over rows.
    """

    first: str = ""
    scale: float = 0.0
    smallest: float = 0.0
    largest: float = 0.0
    before_norm: list[str] = field(default_factory=list)


@contextmanager
def layers_seen(model: nn.Module) -> Iterator[SeenLayers]:
    """Temporarily look at the layers of the first forward."""
    seen = SeenLayers()
    outputs: dict[int, tuple[str, Tensor]] = {}  # with the output itself, so that its id stays its own

    def after(name: str, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not seen.first and args and isinstance(args[0], Tensor):
            seen.first = name
            _measure(seen, args[0].detach().float())
        bias = getattr(layer, "bias", None)
        if isinstance(bias, nn.Parameter) and bias.requires_grad and isinstance(output, Tensor):
            outputs[id(output)] = (name, output)

    def norm_called(_norm: nn.Module, args: tuple[Any, ...]) -> None:
        if args and id(args[0]) in outputs:
            seen.before_norm.append(outputs[id(args[0])][0])

    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, _LAYERS):
            hooks.append(
                module.register_forward_hook(
                    lambda layer, args, output, name=name: after(name, layer, args, output)
                )
            )
        elif isinstance(module, _NormBase) and module.training:
            hooks.append(module.register_forward_pre_hook(norm_called))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def unscaled_inputs(seen: SeenLayers) -> Iterator[Finding]:
    """Detect inputs that are far from the scale which the weights of a new layer are drawn for."""
    if seen.scale < LARGE:
        return
    columns = (
        (f"deviations of its columns go from {seen.smallest:.3g} to {seen.largest:.3g}",)
        if seen.largest
        else ()
    )
    yield Finding(
        "unscaled_inputs",
        Certainty.LIKELY,
        f"the first layer gets values of {seen.scale:.3g} (root mean square), and is drawn for values of about 1: it learns slowly or not "
        "at all, at the rate that suits the others",
        where=seen.first,
        evidence=columns,
        fix="rows = (rows - mean) / deviation  # of the rows to train on, the same in evaluation",
    )


def biases_before_norms(seen: SeenLayers) -> Iterator[Finding]:
    """Detect biases of layers whose output's mean a norm takes away."""
    if not seen.before_norm:
        return
    yield Finding(
        "bias_before_norm",
        Certainty.WORTH_A_LOOK,
        f"{len(seen.before_norm)} layers have a bias that the norm behind them takes away: it gets no gradient but rounding, and costs memory",
        where=seen.before_norm[0],
        evidence=(listed(seen.before_norm),),
        fix="nn.Conv2d(…, bias=False)  # before nn.BatchNorm2d, which has a bias of its own",
    )


def _measure(seen: SeenLayers, inputs: Tensor) -> None:
    seen.scale = float(inputs.square().mean().sqrt())
    if inputs.ndim == 2 and len(inputs) > 1:
        deviations = inputs.std(dim=0)
        seen.smallest, seen.largest = float(deviations.min()), float(deviations.max())
