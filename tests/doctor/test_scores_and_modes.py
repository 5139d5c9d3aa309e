"""Steps of the wrong optimizer and layers over one value, said at their line; scores of a part that are shown for all; modes and graphs of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detectors.updates.parameter_faults import never_stepped, no_gradient
from snugfit.doctor.observe.events.log import Log, OptimizerSeen, ParameterSeen
from snugfit.doctor.observe.events.script_events import Backward, Event, Step
from snugfit.doctor.observe.events.state_events import NarrowNorm
from tests.doctor.test_variants import BEGIN

MADE, OWN_STEP, WRONG_STEP = "gan.py:3", "gan.py:10", "gan.py:14"


def _step(at: str, optimizer: int) -> Step:
    return Step(at, 0, optimizer, stale=False, cleared=False, scaled=False, without=False, rescaled=False)


def _gradients(*optimizers: int) -> Backward:
    return Backward("gan.py:9", 0, 1.0, "", [], [*optimizers])


@pytest.mark.parametrize(
    ("window", "line"),
    [
        ([_gradients(1), _step(OWN_STEP, 1), _gradients(2), _step(WRONG_STEP, 1)], WRONG_STEP),
        ([_gradients(2), _step(WRONG_STEP, 1), _gradients(1, 2), _step(OWN_STEP, 1)], WRONG_STEP),
        ([_gradients(1, 2), _step(OWN_STEP, 1)], MADE),
        ([_gradients(1), _gradients(2), _step(OWN_STEP, 1)], MADE),
        ([_gradients(2), _gradients(1), _step(OWN_STEP, 1)], MADE),
    ],
)
def test_an_optimizer_that_steps_in_place_of_another_is_named_where_it_steps(
    window: list[Event], line: str
) -> None:
    optimizers = [OptimizerSeen(1, "Adam", "gan.py:2", [7]), OptimizerSeen(2, "Adam", MADE, [8])]
    (finding,) = never_stepped(Log(events=window * 9, optimizers=optimizers, complete=True))
    assert finding.where == line


NORMED = """
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        {norm}
net = Net({width})
"""


@pytest.mark.parametrize(
    ("norm", "width"),
    [
        ("self.norm = nn.LayerNorm(width)  # cause", 1),
        (
            "layers = [nn.Tanh(), nn.LayerNorm((width,))]  # cause\n        self.norm = nn.Sequential(*layers)",
            1,
        ),
        ("self.norm = nn.TransformerEncoderLayer(width, 1, 8, 0.0)  # cause", 1),
        ("self.norm = nn.LayerNorm(width)", 8),
        ("self.norm = nn.TransformerEncoderLayer(width, 1, 8, 0.0)", 8),
        ("self.norm, self.scale = nn.BatchNorm1d(width), nn.Parameter(torch.ones(width))", 1),
    ],
)
def test_gradients_of_zeros_in_front_of_a_norm_over_one_value_are_said_where_that_is_made(
    tmp_path: Path, norm: str, width: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + NORMED.format(norm=norm, width=width))
    lines = script.read_text().splitlines()
    made = [f"train.py:{number}" for number, line in enumerate(lines, 1) if "# cause" in line]
    narrow = list(watch_script(script).of(NarrowNorm))
    assert {Path(each.at).name for each in narrow} == {*made}
    zero = ParameterSeen(7, "first.weight", 6, 2, 5, library=False, updates=8, zero_gradient=8)
    log = Log(events=[*narrow], parameters=[zero], complete=True)
    log.optimizers = [OptimizerSeen(1, "Adam", MADE, [7])]
    (finding,) = no_gradient(log)
    assert Path(finding.where).name == (made or [MADE])[0]
