import torch
import torch.nn.functional as F
from torch import nn


class GCN(nn.Module):
    def __init__(self, in_channels, hidden, out_channels, dropout=0.4):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(in_channels, hidden), nn.Linear(hidden, out_channels)
        self.dropout = dropout

    def encode(self, x, adj):
        x = F.relu(adj @ self.lin1(x))
        x = F.dropout(x, p=self.dropout, training=self.training)
        return adj @ self.lin2(x)

    def decode(self, z, edges):
        return (z[edges[0]] * z[edges[1]]).sum(dim=-1)


def citations(nodes=240, groups=6, seed=5):
    """Papers that cite mostly their own field, with noisy words."""
    g = torch.Generator().manual_seed(seed)
    field = torch.arange(nodes) % groups
    same = field[:, None] == field[None]
    linked = torch.rand(nodes, nodes, generator=g) < torch.where(same, 0.18, 0.006)
    edges = torch.triu(linked, diagonal=1).nonzero().t()
    words = torch.randn(groups, 24, generator=g)
    return 0.6 * words[field] + torch.randn(nodes, 24, generator=g), edges[:, torch.randperm(edges.size(1), generator=g)]


def normalised(edges, nodes):
    adj = torch.eye(nodes)
    adj[edges[0], edges[1]] = 1
    adj[edges[1], edges[0]] = 1
    degree = adj.sum(1).rsqrt()
    return degree[:, None] * adj * degree[None]


def negative_sampling(known, nodes, count):
    pairs = torch.randint(0, nodes, (2, 3 * count))
    fine = ~known[pairs[0], pairs[1]] & (pairs[0] != pairs[1])
    return pairs[:, fine][:, :count]


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    positives = int(labels.sum())
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives)))


torch.manual_seed(0)
x, edges = citations()
nodes, held = x.size(0), edges.size(1) // 5
test_edges, train_edges = edges[:, :held], edges[:, held:]
known = torch.zeros(nodes, nodes, dtype=torch.bool)
known[edges[0], edges[1]] = known[edges[1], edges[0]] = True
adj = normalised(train_edges, nodes)
test_pairs = torch.cat([test_edges, negative_sampling(known, nodes, held)], dim=1)
test_labels = torch.cat([torch.ones(held), torch.zeros(test_pairs.size(1) - held)])

model = GCN(x.size(1), 64, 16)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    z = model.encode(x, adj)
    negatives = negative_sampling(known, nodes, train_edges.size(1))
    scores = torch.cat([model.decode(z, train_edges), model.decode(z, negatives)])
    labels = torch.cat([torch.ones(train_edges.size(1)), torch.zeros(negatives.size(1))])
    loss = F.binary_cross_entropy_with_logits(scores, labels)
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    z = model.encode(x, adj)
    return auc(model.decode(z, test_pairs), test_labels)


for epoch in range(1, 101):
    loss = train()
    if epoch % 20 == 0:
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Test AUC: {test():.4f}")
