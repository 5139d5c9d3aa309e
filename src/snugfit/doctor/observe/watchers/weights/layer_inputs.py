"""Layers of a model: inputs of a large scale, biases that a norm takes away."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from snugfit.doctor.observe.events.log import ModelSeen
from snugfit.doctor.observe.watchers.weights.module_facts import LIBRARIES, NORMS

_NORMS_OVER_ROWS = (*NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)
LEAST_PIXELS, MOST_ROWS, HALF = 64, 64, 127


class Layers:
    """The layers of a forward pass, while it computes."""

    def __init__(self) -> None:
        # with the output itself, so that its id stays its own
        self._outputs: dict[int, tuple[nn.Module, Tensor]] = {}
        self._firsts: dict[int, int] = {}

    def before(self, root: ModelSeen, top: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Look at what a layer inside of a model gets; `top` is the model itself."""
        if not args or not isinstance(args[0], Tensor):
            return
        first = not root.first_layer and isinstance(module, (*_LAYERS, nn.RNNBase))
        values = args[0].detach()
        numbers = values.is_floating_point() and bool(values.numel())
        if self._firsts.get(root.id) == id(module) and numbers and root.input_scale:
            # a batch may be far from the others
            root.input_scale = min(root.input_scale, float(values.float().square().mean().sqrt()))
        elif first:
            root.first_layer = _name_in(top, module)
            self._firsts[root.id] = id(module)
            if numbers:
                root.input_scale = float(values.float().square().mean().sqrt())
                root.image = (values.dim() == 4 and bool((values >= 0).all())) or _are_bytes(values)
                root.input_largest = float(values.abs().max())
        elif isinstance(module, _NORMS_OVER_ROWS) and module.training and id(args[0]) in self._outputs:
            name = _name_in(top, self._outputs[id(args[0])][0])
            if name not in root.biased and not type(top).__module__.startswith(LIBRARIES):
                root.biased.append(name)

    def after(self, module: nn.Module, output: Any) -> None:
        """Remember what a layer with a bias that trains gave."""
        bias = module.bias if isinstance(module, _LAYERS) else None
        if bias is not None and bias.requires_grad and isinstance(output, Tensor):
            self._outputs[id(output)] = (module, output)

    def clear(self) -> None:
        """Forget the outputs when the forward pass is over."""
        self._outputs.clear()


def _are_bytes(values: Tensor) -> bool:
    """Return whether rows are those of pictures that were laid out flat: many whole numbers of 0 to 255 in each, of many kinds."""
    if values.dim() < 2 or values[0].numel() < LEAST_PIXELS:
        return False
    some = values[:MOST_ROWS]
    low, high = float(some.min()), float(some.max())
    whole = low >= 0 and HALF < high <= 2 * HALF + 1 and bool((some == some.round()).all())
    return whole and some.unique().numel() > HALF / 4


def _name_in(top: nn.Module, module: nn.Module) -> str:
    return next((name for name, each in top.named_modules() if each is module), type(module).__name__)
