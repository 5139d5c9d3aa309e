"""What scripts write by hand instead of calling torch's functions: found where it is wrong, left alone where it is right."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import numpy
import pytest
import torch
from torch import nn

from snugfit.doctor.findings import Finding, is_ill
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.events.script_events import StaleState
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.watchers.modules.stale_states import StaleStates

SCALED = """
import torch
from torch import nn
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(6):
    loss = nn.functional.mse_loss(net(torch.randn(12, 8)), torch.randn(12, 2) * (step + 1))
    opt.zero_grad()
    scaler.scale(loss).backward()
    parameters = list(net.parameters())
{between}
    scaler.step(opt)
    scaler.update()
"""
BY_NORM = """
total = torch.sqrt(sum(p.grad.pow(2).sum() for p in parameters))
for p in parameters:
    p.grad.mul_(min(1.0, {limit} / float(total)))
"""
MULTIPLIED = """
import torch
from torch import nn
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(6):
    loss = nn.functional.mse_loss(net(torch.randn(12, 8)), torch.randn(12, 2))
    opt.zero_grad()
    (loss * 1024).backward()
{between}
    opt.step()
"""
DIVIDE = "for p in net.parameters():\n    p.grad /= 1024\n"
SCORED = """
import torch
from torch import nn
torch.manual_seed(1)
x, y = torch.randn(160, 5), torch.randint(0, 2, (160, 1)).float()
net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
def update(rows, target):
    loss = nn.functional.binary_cross_entropy_with_logits(net(rows), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
for epoch in range(4):
    for start in range(0, 90, 30):
        update(x[start : start + 30], y[start : start + 30])
{evaluation}
"""


def examined(tmp_path: Path, text: str) -> tuple[Finding, ...]:
    script = tmp_path / "train.py"
    script.write_text(text)
    log = watch_script(script)
    assert log.complete and not log.failure
    return diagnose([log])


def pitfalls(found: tuple[Finding, ...]) -> list[str]:
    return [finding.pitfall for finding in found if is_ill([finding])]


@pytest.mark.parametrize(
    "between",
    [
        BY_NORM.format(limit=1.0),
        "for p in parameters:\n    p.grad.clamp_(-0.1, 0.1)",
        "for p in parameters:\n    p.grad.div_(p.grad.norm())",
        BY_NORM.format(limit=1.0) + "scaler.unscale_(opt)",
    ],
    ids=["a norm", "a value", "unit length", "before unscale_"],
)
def test_gradients_that_are_limited_by_hand_before_they_are_unscaled_are_found(
    tmp_path: Path, between: str
) -> None:
    found = examined(tmp_path, SCALED.format(between=indent(between, "    ")))
    assert pitfalls(found) == ["clip_before_unscale"]
    assert "multiplied by the loss scale, 1024" in found[0].what


@pytest.mark.parametrize(
    "between",
    [
        "for p in parameters:\n    p.grad.div_(4)",
        "parameters[0].grad[:3].zero_()",
        "parameters[0].grad.zero_()",
        "for p in parameters:\n    torch.nan_to_num_(p.grad)",
        BY_NORM.format(limit="0.05 * scaler.get_scale()"),
        "scaler.unscale_(opt)\n" + BY_NORM.format(limit=0.5),
        BY_NORM.format(limit=1e9),
    ],
    ids=[
        "averaged",
        "masked",
        "left out",
        "made finite",
        "a limit times the scale",
        "unscaled first",
        "never reached",
    ],
)
def test_what_may_be_done_to_scaled_gradients_is_left_alone(tmp_path: Path, between: str) -> None:
    found = examined(tmp_path, SCALED.format(between=indent(between, "    ")))
    assert "clip_before_unscale" not in pitfalls(found)


def test_a_loss_that_is_multiplied_by_hand_and_divided_after_clipping_is_found(tmp_path: Path) -> None:
    clip = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
    late = MULTIPLIED.format(between=indent(clip + DIVIDE, "    "))
    found = examined(tmp_path, late)
    assert pitfalls(found) == ["clip_before_unscale"]
    assert Path(found[0].where).name == f"train.py:{late[: late.index('nn.utils')].count(chr(10)) + 1}"
    in_time = MULTIPLIED.format(between=indent(DIVIDE + clip, "    "))
    assert pitfalls(examined(tmp_path, in_time)) == []
    limited = MULTIPLIED.format(between=indent(clip.replace("1.0", "1024.0") + DIVIDE, "    "))
    assert pitfalls(examined(tmp_path, limited)) == []


EVALUATED = """
with torch.no_grad():
    predicted = (torch.sigmoid(net(x[90:120])) > 0.5).float()
    print({score})
"""


@pytest.mark.parametrize(
    "score",
    [
        "(predicted == y[90:120]).float().mean().item()",
        "int(predicted.ne(y[90:120]).sum())",
        "(predicted != y[90:120]).sum()",
    ],
)
def test_predictions_that_are_compared_by_hand_in_training_mode_are_found(tmp_path: Path, score: str) -> None:
    found = examined(tmp_path, SCORED.format(evaluation=indent(EVALUATED.format(score=score), "    ")))
    assert pitfalls(found) == ["train_mode"]
    assert "4 evaluation batches" in found[0].what


@pytest.mark.parametrize(
    "evaluation",
    [
        "net.eval()\n" + EVALUATED.format(score="(predicted == y[90:120]).sum()") + "net.train()",
        EVALUATED.format(score="predicted.mean().item()"),
        EVALUATED.format(score="(predicted == 1).sum()"),
        """
with torch.no_grad():
    several = torch.stack([net(x[90:120]) for _ in range(9)])
    print(((several.mean(0) > 0).float() == y[90:120]).sum())
""",
        """
with torch.no_grad():
    predicted = (net(x[:30]) > 0).float()
    print((predicted == y[:30]).sum())
""",
        """
with torch.no_grad():
    acted = (net(x[90 + 10 * epoch : 100 + 10 * epoch]) > 0).float()
    right = (acted == y[90 + 10 * epoch : 100 + 10 * epoch]).float()
update(x[90 + 10 * epoch : 100 + 10 * epoch], right)
""",
        """
for start in range(0, 90, 10):
    with torch.no_grad():
        target = (net(x[start : start + 10] + 0.1 * torch.randn(10, 5)) > 0).float()
        agree = (target == y[start : start + 10]).float().mean()
    update(x[start : start + 10], target * agree)
""",
    ],
    ids=[
        "evaluation mode",
        "nothing is compared",
        "compared with a number",
        "Monte Carlo dropout",
        "rows that were trained on",
        "rows that are trained on later",
        "targets in every update",
    ],
)
def test_a_pass_in_training_mode_that_is_no_evaluation_is_left_alone(tmp_path: Path, evaluation: str) -> None:
    assert "train_mode" not in pitfalls(
        examined(tmp_path, SCORED.format(evaluation=indent(evaluation, "    ")))
    )


LATE = """
import torch
from torch import nn
torch.manual_seed(1)
body, head = nn.Linear(6, 12), nn.Linear(12, 2)
model = nn.Sequential(body, nn.ReLU(), nn.Dropout(0.1), head)
body.requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for update in range(60):
    late = update >= 20
    x, y = torch.randn(12, 6), torch.randint(0, 2, (12,))
    loss = nn.functional.cross_entropy(model(x), y)
{update}
"""
GROWS_LATE = {
    "zero_grad": "    if not late: optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()",
    "group_holes": "    if late: body.requires_grad_(True)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()",
    "train_mode": "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n    if late: model.eval()",
    "clip_before_unscale": (
        "    optimizer.zero_grad()\n    scaler.scale(loss).backward()\n    if not late: scaler.unscale_(optimizer)\n"
        "    nn.utils.clip_grad_norm_(head.parameters(), 1.0)\n    scaler.step(optimizer)\n    scaler.update()"
    ),
    "clip_after_step": (
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        "    if late: nn.utils.clip_grad_norm_(head.parameters(), 1.0)"
    ),
    "non_finite_loss": "    optimizer.zero_grad()\n    (loss * (float('nan') if late else 1)).backward()\n    optimizer.step()",
}


@pytest.mark.parametrize("pitfall", list(GROWS_LATE))
def test_what_goes_wrong_after_the_first_updates_is_found_though_not_each_update_is_looked_at_closely(
    pitfall: str, tmp_path: Path
) -> None:
    assert pitfall in pitfalls(examined(tmp_path, LATE.replace("{update}", GROWS_LATE[pitfall])))


REUSED = """
import numpy, torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(1)
buffers = [numpy.zeros((8, 5), "float32") for _ in range(2)]
loaders = [
    DataLoader(torch.randn(64, 5), 8, shuffle=True, collate_fn=lambda rows, to=to: torch.from_numpy(numpy.stack(rows, out=to)))
    for to in buffers
]
net = nn.Linear(5, 5)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for x, other in zip(*loaders):
    target = {target}
    loss = nn.functional.mse_loss(net(x), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_targets_that_lie_where_an_earlier_batch_lay_are_not_taken_for_it(tmp_path: Path) -> None:
    mine = REUSED.format(target="torch.from_numpy(numpy.tanh(x.numpy(), out=buffers[1]))")
    assert pitfalls(examined(tmp_path, mine)) == []
    assert pitfalls(examined(tmp_path, REUSED.format(target="other"))) == ["mismatched_rows"]


RECURRENT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 12, batch_first=True), nn.Linear(12, 2)
        self.state = torch.zeros(1, 16, 12)
    def forward(self, x):
        {reset}
        out, state = self.rnn(x, self.state)
        self.state = state.detach()
        return self.head(out.mean(1))
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
labels = torch.randint(0, 2, (128,))
for x, y in DataLoader(TensorDataset(torch.randn(128, 7, 3) + labels[:, None, None], labels), 16, shuffle=True):
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_state_that_is_set_to_zeros_is_none_of_other_rows(tmp_path: Path) -> None:
    for reset in ("self.state = torch.zeros(1, 16, 12)", "self.state.zero_()"):
        assert pitfalls(examined(tmp_path, RECURRENT.format(reset=reset))) == []
    assert pitfalls(examined(tmp_path, RECURRENT.format(reset="pass"))) == ["stale_state"]


def test_zeros_that_lie_where_a_state_lay_are_not_that_state() -> None:
    recorder = Recorder(8, None, None)
    states, layer, memory = StaleStates(recorder), nn.GRU(3, 2), numpy.ones((1, 4, 2), "float32")
    for states.batch in (1, 2):
        state = torch.from_numpy(memory)
        states.before(layer, (torch.zeros(5, 4, 3), state))
        states.after(layer, (None, state))
    assert recorder.log.events == []
    states.batch = 3
    states.before(layer, (torch.zeros(5, 4, 3), state.detach()))
    assert [type(event) for event in recorder.log.events] == [StaleState]


MISSING = """
import torch
from torch import nn
torch.manual_seed(1)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(4):
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16, 1)).float()
    x[:, 0] = 1.0  # an intercept
    y[3] = float("nan")
    loss = nn.functional.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_target_that_is_missing_beside_a_constant_column_is_found_as_a_loss_that_is_no_number(
    tmp_path: Path,
) -> None:
    assert "non_finite_loss" in pitfalls(examined(tmp_path, MISSING))
