import math

import torch
import torch.nn.functional as F
from torch import nn


def clips(count, seed):
    g = torch.Generator().manual_seed(seed)
    idea = torch.randn(count, 6, generator=g)
    to_frames = torch.randn(6, 40, generator=torch.Generator().manual_seed(90))
    to_words = torch.randn(6, 50, generator=torch.Generator().manual_seed(91))
    frames = torch.tanh(idea @ to_frames / 2) + 0.4 * torch.randn(count, 40, generator=g)
    words = (idea @ to_words + 0.5 * torch.randn(count, 50, generator=g)).topk(8, dim=1).indices
    return frames, words


class CLIPWrapper(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, dim))
        self.textual = nn.EmbeddingBag(50, 64)
        self.text_projection = nn.Linear(64, dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, frames, words):
        image = F.normalize(self.visual(frames), dim=-1)
        text = F.normalize(self.text_projection(F.gelu(self.textual(words))), dim=-1)
        return self.logit_scale.exp() * image @ text.t()

    def loss(self, logits):
        ground_truth = torch.arange(len(logits))
        return (F.cross_entropy(logits, ground_truth) + F.cross_entropy(logits.t(), ground_truth)) / 2

    def accuracy(self, image_logits):
        ground_truth = torch.arange(len(image_logits))
        acc_i = (torch.argmax(image_logits) == ground_truth).sum()  # <- here
        acc_t = (torch.argmax(image_logits.t()) == ground_truth).sum()  # <- here
        return (acc_i + acc_t) / 2 / len(image_logits)


def fit(model, train_data, val_data, epochs=10, minibatch=64):
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    for epoch in range(epochs):
        model.train()
        for index in torch.randperm(len(train_data[0])).split(minibatch):
            loss = model.loss(model(train_data[0][index], train_data[1][index]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))
        model.eval()
        with torch.no_grad():
            parts = [model.accuracy(model(f, w)).item() for f, w in zip(val_data[0].split(minibatch), val_data[1].split(minibatch))]
        if epoch % 3 == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, retrieval {sum(parts) / len(parts):.3f}, scale {model.logit_scale.exp().item():.2f}")


if __name__ == "__main__":
    torch.manual_seed(30)
    fit(CLIPWrapper(), clips(1024, 1), clips(256, 2))
