"""A module's forward and backward on some of the rows at a time, with nothing kept but its inputs, or those of a module before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

from snugfit.core.random import preserved_randomness
from snugfit.kit.activations.call_tensors import Rebuild, taken_apart
from snugfit.kit.buffers import MovedBuffers, marks_of
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
        every: of how many modules in a row, each of which is given what the one before it returned, one keeps its inputs; the others
            compute them again from those.

    >>> layer, inputs = nn.Linear(2, 1), torch.ones(5, 2)
    >>> by_rows = RowWise(layer, rows=2, setting="rows", name="layer")
    >>> by_rows(layer.forward, 5, (inputs,), {}).sum().backward()
    >>> layer.weight.grad
    tensor([[5., 5.]])
    """

    def __init__(self, module: nn.Module, rows: int, setting: str, name: str, every: int = 1) -> None:
        self.module, self.rows, self.every = module, rows, every
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
        self.before, self.depth = _before(inputs, of.every)
        self.versions: list[int] = []
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

    def outputs(self, inputs: Sequence[Tensor], *, first: bool = False) -> list[Tensor]:
        """Return what the module gives, part by part, for all rows; the first time it is looked at."""
        whole: list[Tensor] = []
        for part in self.parts:
            before = marks_of(self.of.module)
            outputs = self.run(self.taken(inputs, part))
            if first and part.start > 0:  # the first may fill a cache
                self.of.checks.require_still(before)
            if first:
                self.of.checks.require_parts(outputs, part.stop - part.start)
            whole = whole or [tensor.new_empty(self.total, *tensor.shape[1:]) for tensor in outputs]
            for target, tensor in zip(whole, outputs, strict=True):
                target[part] = tensor
        return whole

    def inputs_of(self, saved: Sequence[Tensor | None]) -> list[Tensor]:
        """Return what the call was given: what it saved, and what the call before it gives again."""
        again: list[Tensor] = []
        if self.before:
            node = next(iter(self.before.values())).node
            given = node.call.inputs_of(node.saved_tensors)
            with torch.no_grad(), node.call.again():
                again = node.call.outputs(given)
        return [
            again[self.before[place].number] if tensor is None else tensor
            for place, tensor in enumerate(saved)
        ]


class _Output(NamedTuple):
    """An output of an earlier call: the node of its graph, which has the call, and the number among its outputs."""

    node: Any
    number: int


def _before(inputs: Sequence[Tensor], every: int) -> tuple[dict[int, _Output], int]:
    """Return the inputs that are outputs of one call before, by their place, where they are not kept; and how many calls in a row keep none."""
    before: dict[int, _Output] = {}
    depth = 0
    for place, tensor in enumerate(inputs):
        node: Any = tensor.grad_fn
        call = getattr(node, "call", None)
        if not isinstance(call, _Call) or call.depth + 1 >= every:
            continue
        is_unwritten = call.versions[tensor.output_nr] == tensor._version
        if is_unwritten and all(other.node is node for other in before.values()):
            before[place], depth = _Output(node, tensor.output_nr), call.depth + 1
    return before, depth


class _Function(torch.autograd.Function):
    """Inputs and weights are its arguments, so that a weight gets one gradient a backward, as from any other operation."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = tensors[: len(call.cut)]
        with call.first():
            whole = call.outputs(inputs, first=True)
        call.versions = [tensor._version for tensor in whole]
        ctx.call = call
        ctx.save_for_backward(
            *(None if place in call.before else tensor for place, tensor in enumerate(inputs))
        )
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(tensor for tensor in whole if not can_learn(tensor)))
        return tuple(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        inputs = call.inputs_of(ctx.saved_tensors)
        needed: list[bool] = list(ctx.needs_input_grad[1:])
        wanted = [place for place, need in enumerate(needed) if need]
        sums = _Sums(len(needed), inputs, call)
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
                outputs, theirs = zip(*pairs, strict=True) if pairs else ((), ())
                del part_outputs, pairs
                results: Sequence[Tensor | None] = [None] * len(wanted)
                if outputs:
                    with sums.taking({place: known[place] for place in wanted if place >= len(inputs)}):
                        results = torch.autograd.grad(
                            outputs, [known[place] for place in wanted], theirs, allow_unused=True
                        )
                for place, result in zip(wanted, results, strict=True):
                    if place < len(inputs):
                        sums.put(place, result, part)
                del outputs, theirs, results  # or they would stand beside the next part's
        return (None, *sums.whole)


class _Sums:
    """Gradients of all rows, from those of some at a time: of the inputs in their place, of the weights added up as they come.

    What an earlier call gave again is nobody else's: the gradient of its rows takes their place. Of several inputs that are one tensor, it
    is that of the first.
    """

    def __init__(self, count: int, inputs: Sequence[Tensor], call: _Call) -> None:
        self.whole: list[Tensor | None] = [None] * count
        self._inputs, self._cut = inputs, call.cut
        first_places = {id(inputs[place]): place for place in reversed(call.before)}
        self._again = set(first_places.values())
        self._parts = [0] * count

    @contextmanager
    def taking(self, weights: dict[int, Tensor]) -> Iterator[None]:
        """Temporarily take the gradient of each weight as a backward makes it, which gets a tensor without memory in its place.

        Else those of all weights would stand beside the sums.
        """

        def take(place: int, gradient: Tensor) -> Tensor:
            self._add(place, gradient)
            return gradient if gradient.is_sparse else gradient.new_zeros(()).expand_as(gradient)

        hooks = [weight.register_hook(partial(take, place)) for place, weight in weights.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def put(self, place: int, result: Tensor | None, part: slice) -> None:
        """Take the gradient of an input in some rows."""
        if not self._cut[place]:
            if result is not None:
                self._add(place, result)
            return
        whole = self.whole[place]
        if whole is None and place in self._again:
            whole = self._inputs[place]
        elif whole is None and result is not None:
            whole = torch.zeros_like(self._inputs[place])
        if whole is not None:
            whole[part] = 0.0 if result is None else result
        self.whole[place] = whole

    def _add(self, place: int, gradient: Tensor) -> None:
        total, self._parts[place] = self.whole[place], self._parts[place] + 1
        if total is None:
            self.whole[place] = gradient
        elif self._parts[place] == 2:  # the first may be a view of a gradient that others still read
            self.whole[place] = total + gradient
        else:
            total.add_(gradient)


def _as_is(tensor: Tensor) -> Tensor:
    return tensor
