"""A module's forward and backward on some of the rows at a time, with nothing kept but its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

from snugfit.core.random import preserved_randomness
from snugfit.kit.buffers import MovedBuffers, marks_of
from snugfit.kit.call_tensors import Rebuild, taken_apart
from snugfit.kit.row_wise.row_checks import RowChecks, can_learn, is_cut


class RowWise:
    """Computes a module on `rows` of its rows at a time, and again in backward, each part followed by its own backward.

    Tensors go in with one entry a row, or with a first dimension of 1 (or none) where they are the same for all rows; what
    comes out has one entry a row. The first call tries the module on another number of rows, so that a table which has as
    many entries as there are rows is not taken for rows.

    Args:
        setting: what refusals name.
        name: of the module.
        rows: computed at a time.

    >>> layer, inputs = nn.Linear(2, 1), torch.ones(5, 2)
    >>> by_rows = RowWise(layer, rows=2, setting="rows", name="layer")
    >>> by_rows(layer.forward, 5, (inputs,), {}).sum().backward()
    >>> layer.weight.grad
    tensor([[5., 5.]])
    """

    def __init__(self, module: nn.Module, rows: int, setting: str, name: str) -> None:
        self.module, self.rows = module, rows
        self.checks = RowChecks(module, rows, setting, name)

    def __call__(
        self, forward: Callable[..., Any], total: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what `forward` gives for these arguments, which have `total` rows.

        Raises:
            SettingError: an argument or an output is neither one entry a row nor the same for all rows; the module learns
                weights that are not its own, changes its inputs in place, moves buffers, or keeps what it does not return.
        """
        inputs, rebuild = taken_apart((args, tuple(kwargs.values())))
        names = tuple(kwargs)
        self.checks.require_rows(inputs, total, rebuild(inputs))
        form: list[Rebuild] = []

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            given, named = rebuild(tensors)
            outputs, whole = taken_apart(forward(*given, **dict(zip(names, named, strict=True))))
            self.checks.require_tuples(whole(outputs))
            form[:] = [whole]
            return outputs

        self.checks.try_other_rows(run, inputs, total)
        learned = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        call = _Call(self, run, inputs, learned, total)
        outputs: tuple[Tensor, ...] = _Function.apply(call, *inputs, *learned)  # type: ignore[no-untyped-call]
        return form[0](outputs)


class _Call:
    """A call of a module: its parts, and all that makes a second computation the same as the first."""

    def __init__(
        self,
        of: RowWise,
        run: Callable[[Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        learned: list[nn.Parameter],
        total: int,
    ) -> None:
        self.of, self.run, self.learned, self.total = of, run, learned, total
        self.cut = [is_cut(tensor, total) for tensor in inputs]
        self.parts = [slice(start, min(start + of.rows, total)) for start in range(0, total, of.rows)]
        self.device = inputs[0].device
        self._moved = MovedBuffers(of.module)
        self._host_state = torch.get_rng_state()
        self._devices, self._device_states = get_device_states(*inputs)
        kind = self.device.type
        self._precision = (torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    def first(self) -> AbstractContextManager[None]:
        return self._moved.noted()

    @contextmanager
    def again(self) -> Iterator[None]:
        dtype, enabled = self._precision
        autocast = torch.autocast(self.device.type, dtype=dtype, enabled=enabled)
        with preserved_randomness(self.device), self._moved.rewound(), autocast:
            torch.set_rng_state(self._host_state)
            set_device_states(self._devices, self._device_states, device_type=self.device.type)
            yield

    def taken(self, inputs: Sequence[Tensor], part: slice) -> list[Tensor]:
        return [tensor[part] if cut else tensor for tensor, cut in zip(inputs, self.cut, strict=True)]


class _Function(torch.autograd.Function):
    """Inputs and weights are its arguments, so that a weight gets one gradient a backward, as from any other operation."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = tensors[: len(call.cut)]
        whole: list[Tensor] = []
        with call.first():
            for part in call.parts:
                before = marks_of(call.of.module)
                outputs = call.run(call.taken(inputs, part))
                if part.start > 0:  # the first may fill a cache
                    call.of.checks.require_still(before)
                call.of.checks.require_parts(outputs, part.stop - part.start)
                whole = whole or [tensor.new_empty(call.total, *tensor.shape[1:]) for tensor in outputs]
                for target, tensor in zip(whole, outputs, strict=True):
                    target[part] = tensor
        ctx.call = call
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(tensor for tensor in whole if not can_learn(tensor)))
        return tuple(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        inputs: tuple[Tensor, ...] = ctx.saved_tensors
        needed: list[bool] = list(ctx.needs_input_grad[1:])
        sums: list[Tensor | None] = [None] * len(needed)
        with call.again():
            for part in call.parts:
                given = [
                    tensor.detach().requires_grad_(need)
                    for tensor, need in zip(call.taken(inputs, part), needed, strict=False)
                ]
                known = [*given, *call.learned]
                # as it is, past any hook for saved tensors that is in force: it is used at once
                with torch.enable_grad(), saved_tensors_hooks(_as_is, _as_is):
                    part_outputs = call.run(given)
                call.of.checks.check_learned(part_outputs, known)
                pairs = [
                    (tensor, gradient[part])
                    for tensor, gradient in zip(part_outputs, gradients, strict=True)
                    if gradient is not None and tensor.requires_grad
                ]
                if not pairs:
                    continue
                outputs, theirs = zip(*pairs, strict=True)
                wanted = [place for place, need in enumerate(needed) if need]
                results = torch.autograd.grad(
                    outputs, [known[place] for place in wanted], theirs, allow_unused=True
                )
                for place, result in zip(wanted, results, strict=True):
                    if place < len(inputs) and call.cut[place]:
                        sums[place] = _placed(sums[place], result, part, inputs[place])
                    else:
                        sums[place] = _added(sums[place], result)
        return (None, *sums)


def _as_is(tensor: Tensor) -> Tensor:
    return tensor


def _placed(whole: Tensor | None, result: Tensor | None, part: slice, like: Tensor) -> Tensor | None:
    """Return the gradient of all rows, with that of some in its place."""
    if result is None:
        return whole
    if whole is None:
        whole = torch.zeros_like(like)
    whole[part] = result
    return whole


def _added(total: Tensor | None, result: Tensor | None) -> Tensor | None:
    # the first result may be a view of a gradient that others still read, so that nothing is added to it in place
    if total is None or result is None:
        return result if total is None else total
    return total + result
