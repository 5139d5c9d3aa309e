"""Fast updates are sampled: most of them rest, and what an evaluation or an epoch needs is seen all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.doctor.findings import is_ill
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.events.script_events import EpochEnd, Forward, Step
from snugfit.doctor.observe.recording.recorder import LOOKED, REST_AFTER, REST_EVERY

pytestmark = pytest.mark.slow

LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(400, 6)
y = (x[:, 0] > 0).long()
train = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=4, shuffle=True)
valid = DataLoader(TensorDataset(x[{held_out}], y[{held_out}]), batch_size=40)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(4):
    net.train()
    for rows, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(rows), labels).backward()
        optimizer.step()
    {mode}
    with torch.no_grad():
        for rows, labels in valid:
            (net(rows).argmax(1) == labels).sum()
"""


def _watched(tmp_path: Path, **parts: str):
    script = tmp_path / "train.py"
    script.write_text(LOOP.format(**parts))
    log = watch_script(script)
    assert log.complete and not log.failure
    return log


def test_most_fast_updates_rest_and_epochs_and_evaluations_are_seen_whole(tmp_path: Path) -> None:
    log = _watched(tmp_path, held_out="320:", mode="net.eval()")
    assert log.updates == 320
    seen = {step.update for step in log.of(Step)}
    assert set(range(REST_AFTER)) <= seen
    assert len(seen) < REST_AFTER + (320 - REST_AFTER) / 2, "the others rest"
    assert len([each for each in seen if each > 160 and each % REST_EVERY < LOOKED]) > 10
    assert sum(1 for _ in log.of(EpochEnd)) == 8
    evaluations = [each for each in log.of(Forward) if not each.grad]
    assert len(evaluations) == 8 and all(each.raw for each in evaluations), (
        "the weights of the last step are known"
    )
    assert sum(loader.batches for loader in log.loaders) == 4 * (80 + 2)
    assert not is_ill(diagnose([log]))


def test_a_fault_of_evaluations_is_found_between_updates_that_rest(tmp_path: Path) -> None:
    in_training = diagnose([_watched(tmp_path, held_out="320:", mode="pass")])
    assert [each.pitfall for each in in_training if is_ill([each])] == ["train_mode"]
    leaking = diagnose([_watched(tmp_path, held_out="300:380", mode="net.eval()")])
    assert [each.pitfall for each in leaking if is_ill([each])] == ["leakage"]
    assert "20 of 80" in leaking[0].what, "all rows of the first epoch are known"
