"""Models of pictures that give all places the class that nearly all of them have, and what looks alike and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

ROWS = """
def rows(count):
    x, m = torch.randn(count, 1, 12, 12), torch.zeros(count, 12, 12, dtype=torch.long)
    m[:, 3:5, 4:6] = 1
    return x + {seen} * m[:, None], m
(x, m), (vx, vm) = rows(80), rows(40)
net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, {outputs}, 1))
optimizer = torch.optim.Adam(net.parameters(), lr={rate})
held_out = DataLoader(TensorDataset(vx, {truth}), batch_size=20)
"""
SCORED = """
net.eval()
with torch.no_grad():
    for a, b in held_out:
        hits = {score}
"""
TWO = "loss = F.cross_entropy(net(x), m)  # cause"
BEST = SCORED.format(score="(net(a).argmax(1) == b).float().mean()")


@pytest.mark.parametrize(
    ("outputs", "seen", "truth", "loss", "score", "pitfall"),
    [
        (2, 0, "vm", TWO, BEST, "imbalance"),
        (1, 0, "vm[:, None].float()", "p, t = net(x).sigmoid().flatten(1), m.flatten(1).float()\nloss = (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean() * 0 + F.binary_cross_entropy(p, t)  # cause", SCORED.format(score="((net(a) > 0) * b).sum()"), "imbalance"),
        (3, 0, "vm[:, None]", "scores = net(x).log_softmax(1)\nloss = F.nll_loss(scores, m)  # cause", BEST, "imbalance"),
        # what is marked is found, or there is nothing to find
        (2, 5, "vm", TWO, BEST, ""),
        (2, 0, "vm * 0", TWO, BEST, ""),
        (2, 0, "vm", "loss = F.cross_entropy(net(x), m, weight=torch.tensor([0.1, 3.0]))", BEST, ""),
        # classes of about the same size
        (2, 0, "(torch.rand(40, 12, 12) < 0.4).long()", TWO, BEST, ""),
        # a picture is made, not a mask
        (1, 0, "vx", "loss = F.mse_loss(net(x), x)", SCORED.format(score="F.mse_loss(net(a), b)"), ""),
        (2, 0, "vm.flatten(1).sum(1)", TWO, BEST.replace("== b", "== 0"), ""),
    ],
)  # fmt: skip
def test_all_places_are_given_the_commonest_class(
    tmp_path: Path, outputs: int, seen: float, truth: str, loss: str, score: str, pitfall: str
) -> None:
    script = ROWS.format(outputs=outputs, seen=seen, truth=truth, rate=0.02) + looped(loss, 90) + score
    told(tmp_path, script, pitfall)


def test_nothing_is_said_of_an_evaluation_early_in_the_run(tmp_path: Path) -> None:
    script = ROWS.format(outputs=2, seen=0, truth="vm", rate=0.02)
    told(tmp_path, script + looped(TWO, 60) + BEST + "net.train()\n" + looped(TWO, 60), "")


def test_what_was_given_in_an_earlier_evaluation_does_not_count(tmp_path: Path) -> None:
    script = ROWS.format(outputs=2, seen=0, truth="vm", rate=0.02)
    told(tmp_path, script + BEST + "net.train()\n" + looped(TWO, 90) + BEST, "imbalance")


CUT = """
class Scenes(Dataset):
    def __init__(self, count, to_tensor=None):
        draw = np.random.RandomState(0)
        self.pictures = draw.randint(0, 255, (count, 12, 12)).astype(np.uint8)
        self.masks = draw.randint(0, {most}, (count, 12, 12)).astype(np.uint8)
        self.to_tensor = to_tensor
    def __len__(self):
        return len(self.masks)
    def __getitem__(self, number):
        picture, mask = self.pictures[number], self.masks[number]
        {row}
        return picture, mask
def scaled(array):
    return torch.from_numpy(array).float().div(255)
def to_tensor(array):
    return torch.from_numpy(array).unsqueeze(0).float() / 255.0
net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(3):
    for picture, mask in DataLoader(Scenes(40, to_tensor), batch_size=8, shuffle=True):
        {batch}
        loss = F.cross_entropy(net(picture), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PICTURE = "picture = scaled(picture)[None]\n        "


@pytest.mark.parametrize(
    ("most", "row", "batch", "pitfall"),
    [
        (3, PICTURE + "mask = scaled(mask).long()  # cause", "pass", "imbalance"),
        (3, "picture, mask = self.to_tensor(picture), self.to_tensor(mask)", "mask = mask.squeeze(1).long()  # cause", "imbalance"),
        (3, PICTURE + "mask = mask.astype(np.float32) / 255\n        mask = torch.from_numpy(mask.astype(np.int64))  # cause", "pass", "imbalance"),
        (3, PICTURE + "mask = torch.from_numpy(mask) / 255", "mask = mask.to(torch.int64)  # cause", "imbalance"),
        # classes stay what they are
        (3, PICTURE + "mask = torch.from_numpy(mask).long()", "pass", ""),
        (3, PICTURE + "mask = (scaled(mask) * 255).round().long()", "pass", ""),
        (3, PICTURE + "mask = (torch.from_numpy(mask) / 2 > 0.5).long()", "pass", ""),
        # there is nothing to find, in masks that nothing divides
        (1, PICTURE + "mask = torch.from_numpy(mask).long()", "pass", ""),
        (1, "picture, mask = to_tensor(picture), torch.as_tensor(mask, dtype=torch.long)", "pass", ""),
    ],
)  # fmt: skip
def test_masks_are_not_brought_to_one_and_cut(
    tmp_path: Path, most: int, row: str, batch: str, pitfall: str
) -> None:
    told(tmp_path, CUT.format(most=most, row=row, batch=batch), pitfall)
