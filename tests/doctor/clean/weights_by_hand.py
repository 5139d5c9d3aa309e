"""A logistic regression whose weights the script moves itself, and whose gradients it takes away; two parts of each batch add up to one."""

from __future__ import annotations

import torch

torch.manual_seed(5)
rows = torch.randn(200, 6)
labels = (rows[:, 0] - rows[:, 3] > 0).float()
weight, bias = torch.zeros(6, requires_grad=True), torch.zeros((), requires_grad=True)
for part in torch.arange(200).repeat(4).split(20):
    for half in part.chunk(2):
        scores = rows[half] @ weight + bias
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels[half])
        (loss / 2).backward()
    for each in (weight, bias):
        each.data -= 0.1 * each.grad
        each.grad = None
print(weight)
