"""A model that was trained first gives targets for a smaller one: it reads the training rows again, and other rows are scored."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(3)
centres = 2 * torch.randn(4, 12)


def points(count):
    label = torch.randint(0, 4, (count,))
    return centres[label] + torch.randn(count, 12), label


def network(width):
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 4))


(rows, labels), (others, answers) = points(320), points(120)
large, small = network(48), network(6)


def score(model):
    with torch.no_grad():
        return (model.eval()(others).argmax(1) == answers).float().mean().item()


for model, teacher in ((large, None), (small, large)):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(4):
        model.train()
        for part in torch.randperm(320).split(40):
            loss = nn.functional.cross_entropy(model(rows[part]), labels[part])
            if teacher is not None:
                with torch.inference_mode():
                    wanted = teacher(rows[part]).softmax(1)
                loss = loss + nn.functional.kl_div(
                    model(rows[part]).log_softmax(1), wanted.clone(), reduction="batchmean"
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(score(model))
