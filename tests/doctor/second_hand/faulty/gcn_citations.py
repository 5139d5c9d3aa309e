"""A graph network on a dense adjacency whose log-softmax runs over the nodes instead of the classes."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=0)


def load_graph(n=120, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    same = labels[:, None] == labels[None, :]
    edges = (torch.rand(n, n, generator=g) < torch.where(same, 0.15, 0.02)).float()
    adj = ((edges + edges.T) > 0).float()
    adj.fill_diagonal_(1.0)
    degree = adj.sum(1).rsqrt()
    features = torch.randn(n, 16, generator=g) + F.one_hot(labels, 16).float()
    return degree[:, None] * adj * degree[None, :], features, labels


torch.manual_seed(42)
adj, features, labels = load_graph()
idx = torch.randperm(120)
idx_train, idx_val = idx[:60], idx[60:]
model = GCN(16, 16, 4, 0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(30):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])  # <- here
    loss_train.backward()
    optimizer.step()

    model.eval()
    with torch.no_grad():
        acc = (model(features, adj)[idx_val].max(1)[1] == labels[idx_val]).float().mean()
    if epoch % 10 == 0:
        print(f"Epoch: {epoch:04d} loss_train: {loss_train.item():.4f} acc_val: {acc:.4f}")
