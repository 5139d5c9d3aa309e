"""Pictures that a trained model is used on as they are, where those that taught it were scaled, beside what looks like it and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

SERVED = """
def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
def pictures(n):
    labels = torch.randint(0, 2, (n,))
    return (torch.rand(n, 3, 8, 8) * 0.8 + 0.2 * labels.view(n, 1, 1, 1)).clamp(0, 1), labels
def normalize(x):
    return {scaled}
net = build()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x, y = pictures(96)
held, wanted = pictures(40)
for epoch in range(2):
    net.train()
    for rows in torch.randperm(96).split(24):
        loss = F.cross_entropy(net(normalize(x[rows])), y[rows])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    net.eval()
    with torch.no_grad(): print((net(normalize(held)).argmax(1) == wanted).float().mean())
requests = pictures(12)[0]
{after}
"""
AROUND = "(x - 0.5) / 0.25"
COPY = "served = build(); served.load_state_dict(net.state_dict()); served.eval()\n"
ASKED = "for each in requests:\n    picture = {made}\n    with torch.no_grad(): answer = {model}(picture).softmax(1)\n    print(int(answer.argmax(1)))"


@pytest.mark.parametrize(
    ("scaled", "after", "pitfall"),
    [
        (AROUND, COPY + ASKED.format(made="each.unsqueeze(0)  # cause", model="served"), "other_statistics"),
        ("(x - torch.tensor([0.5, 0.5, 0.5])[:, None, None]) / 0.3", ASKED.format(made="each[None].contiguous()  # cause", model="net"), "other_statistics"),
        ("x * 2 - 1", "twin = copy.deepcopy(net)\ndef predict(model, picture):\n    with torch.inference_mode(): return model(picture).argmax(1).tolist()  # cause\nprint([predict(twin, part) for part in requests.split(3)])  # cause", "other_statistics"),
        (AROUND, COPY + ASKED.format(made="normalize(each.unsqueeze(0))", model="served"), ""),
        ("x", COPY + ASKED.format(made="each.unsqueeze(0)", model="served"), ""),
        (AROUND, "dummy = torch.rand(1, 3, 8, 8)\nwith torch.no_grad():\n    for _ in range(10): net(dummy)", ""),
        (AROUND, "class Whole(nn.Module):\n    def __init__(self, inner):\n        super().__init__(); self.inner = inner\n    def forward(self, x):\n        return self.inner(normalize(x))\nwhole = Whole(net).eval()\n" + ASKED.format(made="each[None]", model="whole"), ""),
        (AROUND, "other = build().eval()\n" + ASKED.format(made="each[None]", model="other"), ""),
    ],
)  # fmt: skip
def test_a_model_is_used_on_pictures_like_those_that_taught_it(
    tmp_path: Path, scaled: str, after: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, SERVED.format(scaled=scaled, after=after), pitfall, monkeypatch)
