"""Recurrent layers and cells as a GPU runs them: in cuDNN, and in kernels that torch describes for real tensors alone.

What cuDNN keeps for the backward pass (its reserve space) and takes within an operator (its workspace) depends on the device and on an
algorithm that it picks itself, and NVIDIA publishes no formula. Both are predicted here by that of MIOpen, AMD's open library with the
same functions: for each layer, direction, step and example as many hidden states as a cell computes, twice in the reserve.

Source: <https://github.com/ROCm/MIOpen/blob/rocm-6.3.0/src/rnn.cpp>, `GetReserveSize` and `GetWorkspaceSize`;
<https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cudnn/RNN.cpp> for everything around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.planner.cost.records import Op

_aten: Any = torch.ops.aten

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's numbers of the kinds of cells."""

_STATES = {0: 1, 1: 1, 2: 6, 3: 4}
"""Hidden states that a cell of each kind computes: its gates, and for an LSTM what becomes of cell and output."""


def layers() -> dict[str, Callable[..., Any]]:
    """`torch._VF`'s functions of recurrent layers, which run on a pretended GPU as cuDNN would, and elsewhere as they do."""
    return {name: _layer(name, mode) for name, mode in _MODES.items()}


def implementations() -> dict[Any, Callable[..., Any]]:
    """Return what operators give on tensors without numbers of which torch does not tell it."""
    return {
        _aten._cudnn_rnn.default: _forward,
        _aten._cudnn_rnn_backward.default: _backward,
        _aten._thnn_fused_lstm_cell.default: _lstm_cell,  # torch's own takes no cell without biases
        _aten._thnn_fused_gru_cell.default: _gru_cell,
        _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    }


def keeps_its_weights(layer: nn.RNNBase) -> None:
    """Stand in for `flatten_parameters`: joining weights that have no numbers would change no bytes."""


def note(ops: Iterable[Op]) -> tuple[str, ...]:
    """Return what is to be said of the memory of a run with these operators."""
    if not any(operator.startswith("aten._cudnn_rnn") for operator in {op.name for op in ops}):
        return ()
    return ("what cuDNN takes for recurrent layers is predicted by the formula of another library",)


def _layer(name: str, mode: int) -> Callable[..., Any]:
    run = getattr(torch._VF, name)

    def recurrent(inputs: Tensor, second: Any, *args: Any) -> Any:
        if not inputs.is_cuda:
            return run(inputs, second, *args)
        packed = isinstance(args[1], (list, tuple))  # there the weights come later, after the steps' sizes
        states, *rest = args if packed else (second, *args)
        weights, biased, count, dropout, training, both = rest[:6]
        states = [states] if isinstance(states, Tensor) else list(states)
        own = None
        if torch.is_autocast_enabled("cuda"):  # copies of all weights are made side by side
            half = torch.get_autocast_dtype("cuda")
            inputs, states = inputs.to(half), [state.to(half) for state in states]
            weights = [weight.to(half) for weight in weights]
        else:
            own = inputs.new_empty(0)  # weights that lie side by side already
        lstm = name == "lstm"
        projected = lstm and states[0].shape[2] != states[1].shape[2]
        output, hidden, cell, _, _ = _aten._cudnn_rnn(
            inputs,
            weights,
            (4 if biased else 2) + projected,
            own,
            states[0],
            states[1] if lstm else None,
            mode,
            states[1].shape[2] if lstm else states[0].shape[2],
            states[0].shape[2] if projected else 0,
            count,
            False if packed else rest[6],
            dropout,
            training,
            both,
            second.tolist() if packed else [],
            None,
        )
        return (output, hidden, cell) if lstm else (output, hidden)

    return recurrent


def reserve_bytes(args: Sequence[Any]) -> int:
    """Return bytes that `_cudnn_rnn` with these arguments keeps for its backward pass."""
    return 2 * workspace_bytes(args) if args[12] else 0


def workspace_bytes(args: Sequence[Any]) -> int:
    """Return bytes that `_cudnn_rnn` with these arguments, or its backward pass, takes within itself."""
    inputs, mode, hidden, count, both = args[0], args[6], args[7], args[9], args[13]
    return int(_STATES[mode] * count * (2 if both else 1) * _rows(inputs) * hidden * inputs.element_size())


def forward_workspace(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:
    """Return the workspace, and the inputs once more where examples come before steps."""
    turned = args[0].nbytes if args[10] and args[0].dim() == 3 else 0
    return workspace_bytes(args) + turned


def backward_workspace(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the workspace of backward, as forward's; arguments before `mode` are more by the outputs and their gradients."""
    given = (*args[:6], *args[10:])
    gradient = args[7]
    turned = 0 if gradient is None or gradient.is_contiguous() else gradient.nbytes
    return forward_workspace(given, kwargs, out) + turned


def flops(args: Sequence[Any]) -> int:
    """Return each number of each matrix once for every step of every example."""
    matrices = sum(weight.numel() for weight in args[1] if weight.dim() == 2)
    return 2 * _rows(args[0]) * int(matrices)


def _rows(inputs: Tensor) -> int:
    """Return steps of all examples, of which packed sequences have as many as there are."""
    return int(inputs.shape[0] if inputs.dim() == 2 else inputs.shape[0] * inputs.shape[1])


def _forward(_mode: Any, _func: Any, *args: Any) -> tuple[Any, ...]:
    inputs, states, cell = args[0], args[4], args[5]
    hidden, projected, first, both, sizes = args[7], args[8], args[10], args[13], args[14]
    width = (projected or hidden) * (2 if both else 1)
    output = inputs.new_empty((*inputs.shape[:-1], width))
    if first and not sizes:  # as its kernel leaves it: steps before examples
        output = inputs.new_empty((inputs.shape[1], inputs.shape[0], width)).transpose(0, 1)
    weights = inputs.new_empty(0) if args[3] is None else args[3]
    return (
        output,
        torch.empty_like(states),
        inputs.new_empty(0) if cell is None else torch.empty_like(cell),
        inputs.new_empty(reserve_bytes(args), dtype=torch.uint8),
        weights.new_empty(0),
    )


def _backward(_mode: Any, _func: Any, *args: Any) -> tuple[Any, ...]:
    inputs, weights, states, cell, wanted = args[0], args[1], args[4], args[5], args[-1]
    return (
        torch.empty_like(inputs) if wanted[0] else None,
        torch.empty_like(states) if wanted[1] else None,
        torch.empty_like(cell) if wanted[2] and cell is not None else None,
        [torch.empty_like(weight) for weight in weights] if wanted[3] else [],
    )


def _lstm_cell(
    _mode: Any, _func: Any, inputs: Tensor, _gates: Tensor, cell: Tensor, *biases: Any
) -> tuple[Tensor, ...]:
    """Return the new state and cell, and the gates that backward needs."""
    return torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(inputs)


def _gru_cell(
    _mode: Any, _func: Any, _inputs: Tensor, _gates: Tensor, state: Tensor, *biases: Any
) -> tuple[Tensor, Tensor]:
    """Return the new state, and five numbers for each of its numbers that backward needs."""
    return torch.empty_like(state), state.new_empty((state.shape[0], 5 * state.shape[1]))


def _gru_cell_backward(
    _mode: Any, _func: Any, gradient: Tensor, _saved: Tensor, biased: bool
) -> tuple[Any, ...]:
    rows, width = gradient.shape
    bias = [gradient.new_empty(3 * width) if biased else None for _ in range(2)]
    gates = [gradient.new_empty((rows, 3 * width)) for _ in range(2)]
    return *gates, torch.empty_like(gradient), *bias
