"""Pretrain a tiny ViT on coarse classes, keep it as a checkpoint, tune it for fine ones."""
import os

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(12)
os.makedirs("ckpt", exist_ok=True)


def patterns(n, classes, seed):
    gen = torch.Generator().manual_seed(seed)
    proto = torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(classes))
    proto = proto.repeat_interleave(4, 2).repeat_interleave(4, 3)
    y = torch.randint(0, classes, (n,), generator=gen)
    return TensorDataset(proto[y] + 0.8 * torch.randn(n, 3, 16, 16, generator=gen), y)


def build(num_labels):
    return ViTForImageClassification(ViTConfig(
        image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=num_labels,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ))


def train_loop(model, optimizer, dataset, epochs):
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    for epoch in range(epochs):
        model.train()
        for pixel_values, labels in loader:
            loss = model(pixel_values=pixel_values, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print("epoch", epoch, "loss", round(loss.item(), 3))


@torch.no_grad()
def accuracy(model, dataset):
    model.eval()
    hits = [(model(pixel_values=x).logits.argmax(-1) == y).sum() for x, y in DataLoader(dataset, batch_size=64)]
    return sum(hits).item() / len(dataset)


# stage 1
model = build(4)
train_loop(model, torch.optim.AdamW(model.parameters(), lr=1e-3), patterns(512, 4, 0), 2)
torch.save(model.state_dict(), "ckpt/coarse.pt")

# stage 2: a new head on frozen features, then everything
model = build(4)
model.load_state_dict(torch.load("ckpt/coarse.pt", weights_only=True))
model.num_labels = model.config.num_labels = 7
model.classifier = torch.nn.Linear(32, 7)
model.vit.requires_grad = False  # <- here
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
train_loop(model, optimizer, patterns(512, 7, 1), 3)
print("test accuracy", round(accuracy(model, patterns(256, 7, 2)), 3))
