"""Logistic regression by plain SGD with a rate of 1, and a bag of embeddings by SGD with a rate of 4: large, and right."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 6)
y = (x @ torch.randn(6) > 0).float()
linear = nn.Linear(6, 1)
optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
for _ in range(30):
    loss = nn.functional.binary_cross_entropy_with_logits(linear(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("logistic regression", loss.item())


class TextModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(100, 16)
        self.fc = nn.Linear(16, 4)
        nn.init.uniform_(self.embedding.weight, -0.5, 0.5)
        nn.init.uniform_(self.fc.weight, -0.5, 0.5)
        nn.init.zeros_(self.fc.bias)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


model = TextModel()
optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.1)
for _step in range(40):
    labels = torch.randint(0, 4, (32,))
    lengths = torch.randint(4, 12, (32,))
    words = [
        25 * label + torch.randint(0, 25, (n,))
        for label, n in zip(labels.tolist(), lengths.tolist(), strict=True)
    ]
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    loss = nn.functional.cross_entropy(model(torch.cat(words), offsets), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    scheduler.step()
print("bag of embeddings", loss.item())
