"""Weights that a script moves by itself: those that an evaluation leaves in the model are told from those that training makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detectors.rows.label_faults import unused_class
from snugfit.doctor.observe.detectors.scores.checkpoint_faults import average_left_in

BEGIN = """
import torch
from torch import nn
torch.manual_seed(0)
rows, kind = torch.randn(320, 12), torch.randint(1, 4, (320,))
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
loss = nn.CrossEntropyLoss(ignore_index=IGNORED)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
slow = [each.detach().clone() for each in model.parameters()]

def put_in(share):
    with torch.no_grad():
        for mine, value in zip(slow, model.parameters(), strict=True):
            value.copy_(mine.lerp_(value, share))

for epoch in range(5):
    model.train()
    for number in range(10):
        optimizer.zero_grad()
        loss(model(rows[number * 32 :][:32]), kind[number * 32 :][:32]).backward()
        optimizer.step()
        DURING
    BEFORE
    model.eval()
    with torch.no_grad():
        print(epoch, (model(rows).argmax(1) == kind).float().mean().item())
"""


@pytest.mark.parametrize(
    ("during", "before", "found"),
    [
        ("pass", "put_in(0.5)", ["average_kept"]),
        ("put_in(0.5) if number % 5 == 4 else None", "pass", []),  # Lookahead
        ("pass", "pass", []),
    ],
)
def test_weights_that_training_itself_moves_back_are_no_average_that_was_left_in(
    tmp_path: Path, during: str, before: str, found: list[str]
) -> None:
    script = tmp_path / "train.py"
    text = BEGIN.replace("DURING", during).replace("BEFORE", before).replace("IGNORED", "-100")
    script.write_text(text)
    log = watch_script(script)
    assert log.failure == "" and [each.pitfall for each in average_left_in(log)] == found


@pytest.mark.parametrize(("ignored", "found"), [("0", []), ("-100", ["unused_class"])])
def test_a_class_that_does_not_count_is_not_missed(tmp_path: Path, ignored: str, found: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN.replace("DURING", "pass").replace("BEFORE", "pass").replace("IGNORED", ignored))
    log = watch_script(script)
    assert log.failure == "" and [each.pitfall for each in unused_class(log)] == found
