"""GIN on small random graphs: predicts how many triangles there are (standardised)."""
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(14)


def make_graph():
    n = int(torch.randint(6, 14, (1,)))
    adj = (torch.rand(n, n) < 0.35).triu(1)
    adj = adj | adj.t()
    a = adj.float()
    triangles = (a @ a @ a).diagonal().sum() / 6
    return {"x": torch.cat([torch.rand(n, 1), torch.ones(n, 1)], 1), "edge_index": adj.nonzero().t(), "y": triangles}


def collate(graphs):
    xs, edges, batch, offset = [], [], [], 0
    for i, graph in enumerate(graphs):
        xs.append(graph["x"])
        edges.append(graph["edge_index"] + offset)
        batch.append(torch.full((len(graph["x"]),), i))
        offset += len(graph["x"])
    return torch.cat(xs), torch.cat(edges, 1), torch.cat(batch), torch.stack([g["y"] for g in graphs])


class GINLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())

    def forward(self, h, edge_index):
        source, target = edge_index
        around = torch.zeros_like(h).index_add_(0, target, h[source])
        return self.mlp((1 + self.eps) * h + 0.2 * around)


class GIN(nn.Module):
    def __init__(self, dim=32, layers=3):
        super().__init__()
        self.embed = nn.Linear(2, dim)
        self.layers = nn.ModuleList(GINLayer(dim) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x, edge_index, batch, count):
        h = self.embed(x)
        for layer in self.layers:
            h = h + layer(h, edge_index)
        pooled = torch.zeros(count, h.size(1)).index_add_(0, batch, h) / 10
        return self.readout(pooled).squeeze(-1)


graphs = [make_graph() for _ in range(900)]
train_set, val_set = graphs[:750], graphs[750:]
targets = torch.stack([g["y"] for g in train_set])
mean, std = targets.mean(), targets.std()
for g in graphs:
    g["y"] = (g["y"] - mean) / std
train_loader = DataLoader(train_set, 50, shuffle=True, collate_fn=collate)
val_loader = DataLoader(val_set, 64, collate_fn=collate)
model = GIN()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.L1Loss()

for epoch in range(8):
    model.train()
    for x, edge_index, batch, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x, edge_index, batch, len(y)), y)
        loss.backward()
        optimizer.step()
    model.eval()
    val_loss = 0.0
    with torch.no_grad():
        for x, edge_index, batch, y in val_loader:
            val_loss = criterion(model(x, edge_index, batch, len(y)), y).item()  # <- here
    print(f"epoch {epoch} train {loss.item():.3f} val {val_loss:.3f} ({val_loss * std.item():.2f} triangles)")  # <- here
