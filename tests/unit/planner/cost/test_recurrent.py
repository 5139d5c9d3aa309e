"""What cuDNN takes for recurrent layers; that they run on a pretended GPU is in test_pretended_gpu.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from snugfit.planner.cost import recurrent
from snugfit.planner.cost.operator_costs import op_costs
from snugfit.planner.cost.records import Op, Phase, Place

_aten: Any = torch.ops.aten


def arguments(inputs: torch.Tensor, first: bool = False, training: bool = True) -> list[Any]:
    """Of an LSTM of 8 numbers with 16 hidden ones."""
    weights = [torch.empty(64, 8), torch.empty(64, 16), torch.empty(64), torch.empty(64)]
    state = torch.empty(1, 3, 16)
    return [inputs, weights, 4, None, state, state, 2, 16, 0, 1, first, 0.0, training, False, [], None]


def test_the_workspace_of_cudnn_counts_the_copy_of_inputs_that_come_by_example() -> None:
    inputs = torch.empty(3, 5, 8)
    state = 4 * 3 * 5 * 16
    assert recurrent.forward_workspace(arguments(inputs), {}, None) == 6 * state
    assert recurrent.forward_workspace(arguments(inputs, first=True), {}, None) == 6 * state + inputs.nbytes


def test_the_backward_of_cudnn_takes_what_its_forward_does_and_a_gradient_in_order() -> None:
    inputs, gradient = torch.empty(3, 5, 8), torch.empty(5, 3, 16).transpose(0, 1)
    given = arguments(inputs)
    backward = [*given[:6], torch.empty(3, 5, 16), gradient, None, None, *given[6:], None, (True,) * 4]
    assert recurrent.backward_workspace(backward, {}, None) == 6 * 4 * 3 * 5 * 16 + gradient.nbytes


def test_nothing_is_kept_where_nothing_is_trained() -> None:
    assert recurrent.reserve_bytes(arguments(torch.empty(3, 5, 8), training=False)) == 0


@pytest.mark.parametrize("inputs", [torch.empty(3, 5, 8), torch.empty(15, 8)])
def test_packed_texts_cost_as_much_as_padded_ones_of_as_many_steps(inputs: torch.Tensor) -> None:
    given = arguments(inputs)
    costs = op_costs(_aten._cudnn_rnn.default, tuple(given), {}, (torch.empty(3, 5, 16),))
    assert costs.flops == 2 * 15 * (64 * 8 + 64 * 16) and costs.workspace >= 6 * 4 * 15 * 16


def test_a_run_with_cudnns_layers_says_that_their_memory_is_predicted() -> None:
    def op(name: str) -> Op:
        return Op(name, Place(0, Phase.FORWARD, 0, 0, "", -1), "cuda:0", torch.float32, 0, 0, 0, 0)

    assert recurrent.note([op("aten.mm.default")]) == ()
    assert "predicted" in recurrent.note([op("aten._cudnn_rnn.default")])[0]
