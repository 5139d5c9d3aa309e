"""Two-layer GCN on a drawn citation graph (dense adjacency, no graph library)."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

N, CLASSES, FEATS = 420, 6, 48


def citation_graph(seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (N,), generator=g)
    same = labels[:, None] == labels[None, :]
    prob = torch.where(same, 0.035, 0.006)
    upper = (torch.rand(N, N, generator=g) < prob).triu(1)
    adj = (upper | upper.T).float()
    topics = torch.rand(CLASSES, FEATS, generator=g)
    words = (torch.rand(N, FEATS, generator=g) < 0.04 + 0.3 * topics[labels]).float()
    return adj, words, labels


def normalise(adj):
    """D^-1/2 (A + I) D^-1/2"""
    adj = adj + torch.eye(len(adj))
    d = adj.sum(1).pow(-0.5)
    return d[:, None] * adj * d[None, :]


def split(labels, per_class=12, n_val=100, seed=1):
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(N, generator=g)
    train = torch.zeros(N, dtype=torch.bool)
    for c in range(CLASSES):
        train[order[labels[order] == c][:per_class]] = True
    rest = order[~train[order]]
    val, test = torch.zeros_like(train), torch.zeros_like(train)
    val[rest[:n_val]] = True
    test[rest[n_val:]] = True
    return train, val, test


class GraphConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(a, b))
        self.bias = nn.Parameter(torch.zeros(b))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, feats, hidden, classes, dropout=0.5):
        super().__init__()
        self.conv1 = GraphConv(feats, hidden)
        self.conv2 = GraphConv(hidden, classes)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.conv1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return self.conv2(x, adj)


def accuracy(out, labels, mask):
    return (out[mask].argmax(1) == labels[mask]).float().mean().item()


def main():
    torch.manual_seed(5)
    adj, x, labels = citation_graph()
    adj = normalise(adj)
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    train_mask, val_mask, test_mask = split(labels)

    model = GCN(FEATS, 32, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    best_val, best_model, waited = -1.0, None, 0
    for epoch in range(200):
        model.train()
        out = model(x, adj)
        loss = F.cross_entropy(out[train_mask], labels[train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        model.eval()
        with torch.no_grad():
            out = model(x, adj)
        val_acc = accuracy(out, labels, val_mask)
        if val_acc > best_val:
            best_val, waited = val_acc, 0
            best_model = model
        else:
            waited += 1
            if waited >= 60:
                break
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {loss.item():.3f}  val {val_acc:.3f}")

    best_model.eval()
    with torch.no_grad():
        out = best_model(x, adj)
    print(f"stopped at {epoch}; best val {best_val:.3f}, test {accuracy(out, labels, test_mask):.3f}")


if __name__ == "__main__":
    main()
