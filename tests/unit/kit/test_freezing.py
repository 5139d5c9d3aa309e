from __future__ import annotations

import pytest
from torch import nn

from snugfit.kit.freezing import Switches, frozen_norms


def model() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)), nn.BatchNorm1d(2), nn.LayerNorm(2)
    )


def test_norm_layers_go_with_their_own_parameters() -> None:
    made = model()
    assert frozen_norms(made, ["1.bias"]) == [made[1]]
    assert frozen_norms(made, ["2.weight", "2.bias"]) == []


def test_a_norm_layer_without_parameters_goes_with_what_is_around_it() -> None:
    made = model()
    assert frozen_norms(made, ["0.0.weight"]) == []
    assert frozen_norms(made, ["0.0.weight", "0.0.bias"]) == [made[0][1]]
    alone = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))
    assert frozen_norms(alone, ["0.weight"]) == []
    assert frozen_norms(alone, ["0.weight", "0.bias"]) == [alone[1]]


def test_what_is_switched_off_is_switched_on_again_and_nothing_else() -> None:
    made = model()
    made[0][0].bias.requires_grad_(False)  # by somebody else
    made[1].eval()
    switches = Switches(made, ["0.0.weight", "0.0.bias"])
    switches.freeze(["0.0.weight", "0.0.bias"])
    assert not made[0][0].weight.requires_grad and not made[0][1].training
    switches.freeze(())
    assert made[0][0].weight.requires_grad and made[0][1].training
    assert not made[0][0].bias.requires_grad and not made[1].training


@pytest.mark.parametrize("held", [False, True])
def test_a_norm_layer_that_somebody_holds_in_eval_mode_stays_in_it_when_it_is_thawed(held: bool) -> None:
    made = model()
    names = ["1.weight", "1.bias"]
    switches = Switches(made, names)
    made[1].train(not held)
    for frozen in (names, names, (), (), names, ()):  # the run may go back
        switches.freeze(frozen)
        assert made[1].training == (not held and not frozen)


def test_a_norm_layer_that_is_set_going_while_it_is_frozen_is_frozen_and_thawed_again() -> None:
    made = model()
    switches = Switches(made, ["1.weight"])
    for frozen in (["1.weight"], ["1.weight"], ()):
        made.train()  # as after an evaluation that did not switch back
        switches.freeze(frozen)
        assert made[1].training == (not frozen)
