import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class GCNConv(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.lin = nn.Linear(in_dim, out_dim)

    def forward(self, x, adj):
        return adj @ self.lin(x)


class GNN(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim):
        super().__init__()
        self.conv1 = GCNConv(input_dim, hidden_dim)
        self.conv2 = GCNConv(hidden_dim, output_dim)
        self.skip = nn.Linear(input_dim, output_dim)

    def forward(self, x, adj):
        h = F.relu(self.conv1(x, adj))
        return self.conv2(h, adj) + self.skip(x)


def normalized_adjacency(num_nodes, num_edges):
    src = torch.randint(0, num_nodes, (num_edges,))
    dst = torch.randint(0, num_nodes, (num_edges,))
    a = torch.eye(num_nodes)
    a[src, dst] = 1.0
    a[dst, src] = 1.0
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None, :]


num_nodes, num_features = 300, 9
adj = normalized_adjacency(num_nodes, 600)
X = torch.randn(num_nodes, num_features)
w1, w2 = torch.randn(num_features, 1), torch.randn(num_features, 1)
Y = 0.5 * (X @ w1) + adj @ (X @ w2) + 0.3 * torch.randn(num_nodes, 1)

perm = torch.randperm(num_nodes)
train_mask = torch.zeros(num_nodes, dtype=torch.bool)
train_mask[perm[:200]] = True
test_mask = ~train_mask
Y = (Y - Y[train_mask].mean()) / Y[train_mask].std()

features = torch.cat([X, Y], dim=1)
model = GNN(features.shape[1], 16, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)

for epoch in range(200):
    model.train()
    optimizer.zero_grad()
    pred = model(features, adj)
    loss = F.mse_loss(pred[train_mask], Y[train_mask])
    loss.backward()
    optimizer.step()
    if epoch % 40 == 39:
        model.eval()
        with torch.no_grad():
            test_mse = F.mse_loss(model(features, adj)[test_mask], Y[test_mask])
        print(f"epoch {epoch + 1}: train mse {loss.item():.4f}  test mse {test_mse.item():.4f}")

# a new graph
new_adj = normalized_adjacency(100, 200)
new_X = torch.randn(100, num_features)
new_features = torch.cat([new_X, torch.zeros(100, 1)], dim=1)
model.eval()
with torch.no_grad():
    out = model(new_features, new_adj)
print(f"predictions for the new graph: mean {out.mean().item():.3f}, std {out.std().item():.3f}")
