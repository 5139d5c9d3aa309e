"""Text classifier, class."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, vocabulary=50, width=24):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.out(torch.tanh(self.hidden(self.embed(tokens))))


def prepare(model):
    """Wrap the layers as a sharding library would: their parameters are new objects."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.detach().clone())
    return model


torch.manual_seed(0)
tokens = torch.randint(0, 50, (320, 12))
labels = (tokens.float().mean(1) > 25).long()
loader = DataLoader(TensorDataset(tokens, labels), batch_size=32, shuffle=True)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)  # <- here
model = prepare(model)  # <- here
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  # <- here
    print(epoch, loss.item())
