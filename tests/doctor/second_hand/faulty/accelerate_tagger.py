"""A tagger trained by Accelerate that clips the gradients after the step has used them."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(42)
accelerator = Accelerator(cpu=True)
config = {"lr": 2e-3, "num_epochs": 2, "batch_size": 16, "max_norm": 1.0}


class Tagger(nn.Module):
    def __init__(self, vocab=50, tags=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24)
        self.rnn = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.classify = nn.Linear(48, tags)

    def forward(self, words):
        states, _ = self.rnn(self.embed(words))
        return self.classify(states)


words = torch.randint(0, 50, (256, 10))
tags = words % 6
train_dataloader = DataLoader(
    TensorDataset(words[:208], tags[:208]), shuffle=True, batch_size=config["batch_size"]
)
eval_dataloader = DataLoader(TensorDataset(words[208:], tags[208:]), batch_size=config["batch_size"])
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader
)
for epoch in range(config["num_epochs"]):
    model.train()
    for source, targets in train_dataloader:
        loss = nn.functional.cross_entropy(model(source).transpose(1, 2), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.clip_grad_norm_(model.parameters(), config["max_norm"])  # <- here

    model.eval()
    correct = total = 0
    for source, targets in eval_dataloader:
        with torch.no_grad():
            predictions = model(source).argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, targets))
        correct += (predictions == references).sum().item()
        total += references.numel()
    accelerator.print(f"epoch {epoch}: accuracy {100 * correct / total:.1f}")
