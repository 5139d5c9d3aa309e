"""Graph auto-encoder for link prediction in a network of authors (dense adjacency, two GCN layers)."""
import argparse

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torch.nn import functional as F


def authors(n, groups, gen):
    member = torch.randint(0, groups, (n,), generator=gen)
    x = torch.eye(groups)[member] + 0.8 * torch.randn(n, groups, generator=gen)
    p = torch.where(member[:, None] == member[None], 0.16, 0.012)
    upper = torch.triu(torch.rand(n, n, generator=gen) < p, diagonal=1)
    return x, upper.nonzero()


def adjacency(edges, n):
    adj = torch.zeros(n, n)
    adj[edges[:, 0], edges[:, 1]] = 1
    adj = adj + adj.T + torch.eye(n)
    d = adj.sum(1).rsqrt()
    return d[:, None] * adj * d[None]


def non_edges(all_edges, n, count, gen):
    taken = torch.zeros(n, n, dtype=torch.bool)
    taken[all_edges[:, 0], all_edges[:, 1]] = True
    free = torch.triu(~taken, diagonal=1).nonzero()
    return free[torch.randperm(len(free), generator=gen)[:count]]


class GCNEncoder(nn.Module):
    def __init__(self, in_dim, hidden, out):
        super().__init__()
        self.w1 = nn.Linear(in_dim, hidden)
        self.w2 = nn.Linear(hidden, out)

    def forward(self, x, adj):
        h = F.relu(adj @ self.w1(x))
        return adj @ self.w2(h)


class InnerProductDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, z, edges):
        value = (z[edges[:, 0]] * z[edges[:, 1]]).sum(dim=1) + self.bias
        return torch.sigmoid(value)


class GAE(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def recon_loss(self, z, pos, neg):
        logits = torch.cat([self.decoder(z, pos), self.decoder(z, neg)])
        target = torch.cat([torch.ones(len(pos)), torch.zeros(len(neg))])
        return F.binary_cross_entropy_with_logits(logits, target)

    @torch.no_grad()
    def test(self, z, pos, neg):
        score = torch.cat([self.decoder(z, pos), self.decoder(z, neg)]).numpy()
        truth = [1] * len(pos) + [0] * len(neg)
        return roc_auc_score(truth, score), average_precision_score(truth, score)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(12)

    x, edges = authors(args.nodes, 8, gen)
    edges = edges[torch.randperm(len(edges), generator=gen)]
    n_val = len(edges) // 10
    val_pos, test_pos, train_pos = edges[:n_val], edges[n_val : 3 * n_val], edges[3 * n_val :]
    negatives = non_edges(edges, args.nodes, 3 * n_val, gen)
    val_neg, test_neg = negatives[:n_val], negatives[n_val:]
    # messages pass along the training edges alone
    adj = adjacency(train_pos, args.nodes)

    model = GAE(GCNEncoder(x.size(1), 32, 16), InnerProductDecoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad()
        z = model.encoder(x, adj)
        neg = non_edges(train_pos, args.nodes, len(train_pos), gen)
        loss = model.recon_loss(z, train_pos, neg)
        loss.backward()
        optimizer.step()
        if epoch % 10 == 9:
            model.eval()
            with torch.no_grad():
                z = model.encoder(x, adj)
            auc, ap = model.test(z, val_pos, val_neg)
            print(f"Epoch {epoch + 1:03d} loss {loss.item():.4f} AUC {auc:.4f} AP {ap:.4f}")
    auc, ap = model.test(z, test_pos, test_neg)
    print(f"Test AUC {auc:.4f} AP {ap:.4f}")


if __name__ == "__main__":
    main()
