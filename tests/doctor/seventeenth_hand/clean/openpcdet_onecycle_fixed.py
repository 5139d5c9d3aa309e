"""BEV classification of point clouds, trained with the adam_onecycle recipe."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(666)


class SyntheticClouds(Dataset):
    """Scenes of points in [0, 8) x [0, 8); the class is the quadrant of the dense object."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 4, (n,), generator=g)
        base = torch.stack([self.labels % 2, self.labels // 2], dim=1).float() * 4
        center = base + 1 + 2 * torch.rand(n, 2, generator=g)
        obj = center[:, None] + 0.6 * torch.randn(n, 12, 2, generator=g)
        clutter = 8 * torch.rand(n, 60, 2, generator=g)
        height = torch.cat([1 + 0.2 * torch.randn(n, 12, 1, generator=g),
                            0.5 * torch.randn(n, 60, 1, generator=g)], dim=1)
        self.points = torch.cat([torch.cat([obj, clutter], dim=1).clamp(0, 7.99), height], dim=2)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i], self.labels[i]


def voxelize(points):
    """Counts and mean height of each of the 8 x 8 pillars."""
    b = points.shape[0]
    index = points[..., 1].long() * 8 + points[..., 0].long()
    count = torch.zeros(b, 64).scatter_add_(1, index, torch.ones_like(points[..., 0]))
    height = torch.zeros(b, 64).scatter_add_(1, index, points[..., 2]) / count.clamp(min=1)
    return torch.stack([torch.log1p(count), height], dim=-1)


class LearnedEmbedding(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape))

    def forward(self):
        return self.weight


class PlainAttention(nn.Module):
    """Self-attention made of leaf modules."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = PlainAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PillarTransformer(nn.Module):
    def __init__(self, dim=32, num_class=4):
        super().__init__()
        self.pos_embed = LearnedEmbedding(1, 64, dim)
        self.vfe = nn.Sequential(nn.Linear(2, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.block = Block(dim)
        self.dense_head = nn.Linear(dim, num_class)

    def forward(self, points):
        x = self.vfe(voxelize(points)) + self.pos_embed()
        return self.dense_head(self.block(x).mean(dim=1))


def num_children(m):
    return len(list(m.children()))


def build_optimizer(model, lr, weight_decay):
    def flatten_model(m):
        return sum(map(flatten_model, m.children()), []) if num_children(m) else [m]

    norm_types = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
    layers = flatten_model(model)
    decay = [p for m in layers if not isinstance(m, norm_types) for p in m.parameters(recurse=False)]
    no_decay = [p for m in layers if isinstance(m, norm_types) for p in m.parameters(recurse=False)]
    return torch.optim.AdamW([{"params": decay, "weight_decay": weight_decay},
                              {"params": no_decay, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.99))


def evaluate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for points, labels in loader:
            correct += (model(points).argmax(1) == labels).sum().item()
            total += len(labels)
    return correct / total


def main(num_epochs=5, lr=3e-3):
    train_loader = DataLoader(SyntheticClouds(1200, 1), batch_size=24, shuffle=True)
    test_loader = DataLoader(SyntheticClouds(300, 2), batch_size=100)
    model = PillarTransformer()
    optimizer = build_optimizer(model, lr, 0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=num_epochs * len(train_loader),
                                                    pct_start=0.4, div_factor=10, cycle_momentum=False)
    for cur_epoch in range(num_epochs):
        model.train()
        total_loss = 0.0
        for points, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(points), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
            optimizer.step()
            scheduler.step()
            total_loss += loss.item() * len(labels)
        print(f"epoch {cur_epoch + 1}: loss {total_loss / len(train_loader.dataset):.4f}, "
              f"accuracy {evaluate(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
