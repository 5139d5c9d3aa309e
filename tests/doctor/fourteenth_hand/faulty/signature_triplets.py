import torch
import torch.nn as nn

torch.manual_seed(23)

P, K, WRITERS, DIM = 10, 6, 40, 40
styles = torch.randn(WRITERS, DIM)


def signatures(per_writer):
    labels = torch.arange(WRITERS).repeat_interleave(per_writer)
    return styles[labels] + 1.8 * torch.randn(len(labels), DIM), labels


x_train, y_train = signatures(60)
x_gallery, y_gallery = signatures(6)
x_query, y_query = signatures(6)
mean, std = x_train.mean(0), x_train.std(0)
x_train, x_gallery, x_query = ((a - mean) / std for a in (x_train, x_gallery, x_query))


class SiameseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 32))

    def forward(self, x):
        return self.net(x)


def pk_batch():
    writers = torch.randperm(WRITERS)[:P]
    idx = torch.cat([w * 60 + torch.randperm(60)[:K] for w in writers])
    return x_train[idx], y_train[idx]


def triplet_loss(emb, labels, margin=1.0):
    squared = (emb.unsqueeze(0) - emb.unsqueeze(1)).pow(2).sum(-1)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    distance_positive = squared.masked_fill(~same, 0.0).max(1).values
    distance_negative = squared.masked_fill(same, float("inf")).min(1).values
    return torch.clamp(distance_positive - distance_negative + margin, min=0.0).mean()


model = SiameseNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for step in range(400):
    model.train()
    anchor_data, labels = pk_batch()
    optimizer.zero_grad()
    loss = triplet_loss(model(anchor_data), labels)
    loss.backward()
    optimizer.step()

    if step % 100 == 99:
        model.eval()
        with torch.no_grad():
            g, q = model(x_gallery), model(x_query)
            hit = (y_gallery[torch.cdist(q, g).argmin(1)] == y_query).float().mean().item()
        print(f"step {step + 1} loss {loss.item():.4f} embedding spread {q.std(0).mean().item():.4f} rank-1 {hit:.3f}")
