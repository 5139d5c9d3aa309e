"""Accumulation that is meant and never takes place, and float16 without a loss scale, in several ways of writing, and what looks like them and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

TRAINED = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = torch.randn(96, 6), torch.arange(96) % 3
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
"""
GATHERED = (
    TRAINED
    + """
class settings:
    grad_accum_steps = 4
accumulate, options = 4, {{"accumulation": 4, "rows": 4}}
for epoch in range(2):
    for index, (a, b) in enumerate(loader):
{loss}
{step}
"""
)
EACH = "optimizer.step(){mark}\noptimizer.zero_grad()"
EVERY = "if (index + 1) % 4 == 0:\n    optimizer.step()\n    optimizer.zero_grad()"
PIECES = "for one, other in zip(a.chunk(4), b.chunk(4)):\n    (F.cross_entropy(net(one), other) / accumulate).backward()"
TOGETHER = "total = sum(F.cross_entropy(net(one), other) for one, other in zip(a.chunk(4), b.chunk(4)))\nloss = total / accumulate\nloss.backward()"


def _indented(text: str) -> str:
    return "\n".join(8 * " " + line for line in text.splitlines())


@pytest.mark.parametrize(
    ("loss", "step", "pitfall"),
    [
        ("loss = F.cross_entropy(net(a), b) / accumulate\nloss.backward()", EACH, True),
        ("loss = F.cross_entropy(net(a), b)\nloss /= settings.grad_accum_steps\nloss.backward()", EACH, True),
        ("out = net(a)\nloss = F.cross_entropy(out, b)\nif accumulate > 1:\n    loss = loss / float(accumulate)\nloss.backward()\nnn.utils.clip_grad_norm_(net.parameters(), 1.0)", EACH, True),
        ("loss = F.cross_entropy(net(a), b)\n(loss / options['accumulation']).backward()", EACH, True),
        ("loss = F.cross_entropy(net(a), b) / accumulate\nloss.backward()", EVERY, False),
        ("loss = F.cross_entropy(net(a), b) / (accumulate // 4)\nloss.backward()", EACH, False),
        # a mean of four losses, by one pass or by four
        (TOGETHER, EACH, False),
        (PIECES, EACH, False),
        # what is divided is a sum over the rows, or two of several losses
        ("accumulated_rows = len(a)\nloss = F.cross_entropy(net(a), b, reduction='sum') / accumulated_rows\nloss.backward()", EACH, False),
        ("loss = (F.cross_entropy(net(a), b) + net(a).square().mean()) / 2\nloss.backward()", EACH, False),
        ("accumulate = 1\nloss = F.cross_entropy(net(a), b) / accumulate\nloss.backward()", EACH, False),
    ],
)  # fmt: skip
def test_a_loss_that_is_divided_for_a_window_needs_one(
    tmp_path: Path, loss: str, step: str, *, pitfall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = step.format(mark="  # cause" if pitfall else "")
    text = GATHERED.format(loss=_indented(loss), step=_indented(written))
    told(tmp_path, text, "accumulation" if pitfall else "", monkeypatch)


ACCELERATED = (
    TRAINED
    + """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for epoch in range(2):
    for index, (a, b) in enumerate(loader):
{body}
"""
)
PASS = "loss = F.cross_entropy(net(a), b)\naccelerator.backward(loss)\n"
STEP = "optimizer.step()  # cause\noptimizer.zero_grad()"


@pytest.mark.parametrize(
    ("body", "pitfall"),
    [
        (PASS + STEP, True),
        (PASS + "if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(net.parameters(), 1.0)\n" + STEP, True),
        ("with accelerator.autocast():\n    scores = net(a)\n" + PASS + STEP, True),
        ("with accelerator.accumulate(net):\n" + "\n".join(4 * " " + each for each in (PASS + STEP.replace("  # cause", "")).splitlines()), False),
        (PASS + "if (index + 1) % 4 == 0:\n    optimizer.step()\n    optimizer.zero_grad()", False),
    ],
)  # fmt: skip
def test_accelerate_is_told_when_a_micro_batch_begins(
    tmp_path: Path, body: str, *, pitfall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, ACCELERATED.format(body=_indented(body)), "accumulation" if pitfall else "", monkeypatch)


HALVED = (
    TRAINED
    + """
{before}
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
{body}
"""
)
CAST = "with torch.autocast('cpu', dtype={dtype}):\n    loss = F.cross_entropy(net(a), b)\n"
HALF, BRAIN = CAST.format(dtype="torch.float16"), CAST.format(dtype="torch.bfloat16")
PLAIN = "loss.backward()  # cause\noptimizer.step()"
BY_HAND = (
    "(loss * 512.0).backward()\nfor each in net.parameters():\n    each.grad.div_(512.0)\noptimizer.step()"
)
SCALER = "scaler = torch.amp.GradScaler('cpu', init_scale=64.0)"
SCALED = "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
HEAD = "trunk, net = net, nn.Linear(3, 3)\noptimizer = torch.optim.Adam(net.parameters(), lr=1e-3)"
FEATURES = "with torch.no_grad(), torch.autocast('cpu', dtype=torch.float16):\n    a = trunk(a)\nloss = F.cross_entropy(net(a.float()), b)\n"


@pytest.mark.parametrize(
    ("before", "body", "pitfall"),
    [
        ("", HALF + PLAIN, True),
        ("net.half()\noptimizer = torch.optim.SGD(net.parameters(), lr=1e-3)", "loss = F.cross_entropy(net(a.half()).float(), b)\n" + PLAIN, True),
        ("scaler = torch.amp.GradScaler('cpu', enabled=False)", HALF + SCALED.replace(".backward()", ".backward()  # cause"), True),
        ("net[0].half()\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)", "loss = F.cross_entropy(net[2](net[1](net[0](a.half())).float()), b)\n(0.5 * loss).backward()  # cause\noptimizer.step()", True),
        (SCALER, HALF + SCALED, False),
        ("", BRAIN + PLAIN.replace("  # cause", ""), False),
        ("", HALF + BY_HAND, False),
        ("", CAST.replace("dtype={dtype}", "dtype=torch.float16, enabled=False") + PLAIN.replace("  # cause", ""), False),
        (HEAD, FEATURES + PLAIN.replace("  # cause", ""), False),
    ],
)  # fmt: skip
def test_gradients_of_float16_need_a_loss_scale(
    tmp_path: Path, before: str, body: str, *, pitfall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HALVED.format(before=before, body=_indented(body))
    told(tmp_path, text, "unscaled_half" if pitfall else "", monkeypatch)
