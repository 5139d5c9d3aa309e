"""Large linear layers computed tile by tile, so that nothing beside the weight and its gradient is of their size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snugfit.core.batch import Batch, split
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import matches, nearest_names, require_list
from snugfit.kit.patched_forward import replaced_forward
from snugfit.kit.phases import alike


def tiled_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, tiles: int) -> Tensor:
    """Return `inputs @ weight.T + bias`, the outputs computed in `tiles` parts one after the other, and so are its gradients.

    Under autocast one tile at a time is cast to 16 bit, in forward and again in backward. The weight may lie on another
    device than the inputs: its tiles are copied over, and their gradients back.

    Args:
        inputs: shape (..., inputs).
        weight: shape (outputs, inputs).

    >>> tiled_linear(torch.ones(1, 2), torch.ones(3, 2), torch.tensor([0.0, 1.0, 2.0]), tiles=2)
    tensor([[2., 3., 4.]])
    """
    made: Tensor = _Tiled.apply(inputs, weight, bias, tiles)  # type: ignore[no-untyped-call]
    return made


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, tiles: int) -> Tensor:
        inputs = inputs.to(_computed_in(inputs))
        ctx.tiles = split(weight.shape[0], -(-weight.shape[0] // tiles))
        ctx.save_for_backward(inputs, weight)
        outputs = inputs.new_empty(*inputs.shape[:-1], weight.shape[0])
        flat, flat_outputs = inputs.reshape(-1, inputs.shape[-1]), outputs.view(-1, weight.shape[0])
        with torch.autocast(inputs.device.type, enabled=False):
            for rows in alike(ctx.tiles, len):
                tile, into = _tile(weight, rows, inputs), flat_outputs[:, rows.start : rows.stop]
                if bias is None:
                    torch.mm(flat, tile.T, out=into)
                else:
                    torch.addmm(_tile(bias, rows, inputs), flat, tile.T, out=into)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        by_inputs, by_weight, by_bias, _ = ctx.needs_input_grad
        flat, d_flat = inputs.reshape(-1, inputs.shape[-1]), d_outputs.reshape(-1, weight.shape[0])
        # in float32 at least: as many additions as tiles
        d_inputs = torch.zeros_like(flat, dtype=_wide(flat.dtype)) if by_inputs else None
        d_weight = torch.empty_like(weight) if by_weight else None
        with torch.autocast(inputs.device.type, enabled=False):
            for rows in alike(ctx.tiles, len):
                d_part = d_flat[:, rows.start : rows.stop]
                if d_inputs is not None:
                    _add_product(d_inputs, d_part, _tile(weight, rows, inputs))
                if d_weight is not None:
                    d_weight[rows.start : rows.stop].copy_(d_part.T @ flat)
        return (
            None if d_inputs is None else d_inputs.to(inputs.dtype).view(inputs.shape),
            d_weight,
            d_flat.sum(dim=0, dtype=weight.dtype).to(weight.device) if by_bias else None,
            None,
        )


def _tile(tensor: Tensor, rows: range, like: Tensor) -> Tensor:
    return tensor[rows.start : rows.stop].to(like)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _computed_in(inputs: Tensor) -> torch.dtype:
    """Return what autocast, if it is on, computes a linear layer of these inputs in; it leaves float64 alone."""
    device = inputs.device.type
    if torch.is_autocast_enabled(device) and inputs.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return inputs.dtype


@contextmanager
def in_tiles(layer: nn.Linear, tiles: int) -> Iterator[None]:
    """Temporarily let `layer` compute in `tiles` parts of its outputs.

    >>> layer, inputs = nn.Linear(4, 6), torch.ones(2, 4)
    >>> expected = layer(inputs)
    >>> with in_tiles(layer, tiles=3):
    ...     torch.allclose(layer(inputs), expected)
    True
    """

    def run(inputs: Tensor) -> Tensor:
        return tiled_linear(inputs, layer.weight, layer.bias, tiles)

    with replaced_forward(layer, run):
        yield


def large_layers(model: nn.Module, targets: Sequence[str] = (), above: int = 0) -> dict[str, nn.Linear]:
    """Return the linear layers of `model` to compute in tiles, by name.

    Args:
        targets: patterns of modules' names; without any, every linear layer whose weight has at least `above` bytes.
    Raises:
        SettingError: a pattern matches no plain linear layer, or there is none that large.

    >>> large_layers(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), above=90)
    {'0': Linear(in_features=4, out_features=6, bias=True)}
    """
    require_list(targets, "tiled_linear.targets")
    # an adapted layer goes by its own name
    layers = {
        name.removesuffix(".base_layer"): module
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    }
    for pattern in targets:
        if not any(matches(name, pattern) for name in layers):
            raise SettingError(
                "tiled_linear.targets",
                f"'{pattern}' matches no plain nn.Linear of the model",
                nearest_names(pattern, list(layers)),
            )
    if targets:
        return {name: layers[name] for name in layers if any(matches(name, each) for each in targets)}
    large = {name: layer for name, layer in layers.items() if layer.weight.nbytes >= above}
    if not large:
        largest = max((layer.weight.nbytes for layer in layers.values()), default=0)
        raise SettingError(
            "tiled_linear.above",
            f"the largest plain nn.Linear of the model has {largest} bytes, and those of {above} or more are tiled",
            "Give less, or remove tiled_linear.",
        )
    return large


@dataclass(frozen=True)
class TiledLinears(Technique):
    """Compute large linear layers in `tiles` parts of their outputs, one after the other."""

    tiles: int = 8
    targets: tuple[str, ...] = ()
    above: int = 2**26

    card: ClassVar[Card] = Card(
        name="tiled_linear",
        summary="Computes large linear layers tile by tile: no 16-bit copy and no temporary is of their size.",
        aliases=("TiledLinear", "tiled MLP"),
        family=Family.PLACEMENT,
        source="Rajbhandari et al. 2021 (ZeRO-Infinity), arXiv:2104.07857, section 5.1.3; DeepSpeed's TiledLinear",
        seams=("modules",),
        stages=(Stage.TILE,),
        saves_memory=True,
        cost="smaller products; under autocast, weights are cast in backward again",
        use_when="16-bit autocast on layers of 100 MB or more, such as a large vocabulary's head",
    )

    def __post_init__(self) -> None:
        self.require("tiles", self.tiles >= 2, "at least 2")
        self.require("above", self.above >= 0, "zero or positive")

    @classmethod
    def example(cls) -> Self:
        return cls(tiles=3, above=0)

    def seams(self, context: Context) -> Seams:
        layers = large_layers(context.model, self.targets, self.above).values()

        @contextmanager
        def modules(_batch: Batch) -> Iterator[None]:
            with ExitStack() as stack:
                for layer in layers:
                    stack.enter_context(in_tiles(layer, self.tiles))
                yield

        return Seams(modules=modules)
