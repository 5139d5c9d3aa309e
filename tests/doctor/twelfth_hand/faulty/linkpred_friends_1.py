# Who will befriend whom? Link prediction on a drawn graph with a two-layer GraphSAGE, torch only.
import torch
from torch import nn
import torch.nn.functional as F


def make_graph(n=240, groups=6, seed=4):
    g = torch.Generator().manual_seed(seed)
    club = torch.randint(groups, (n,), generator=g)
    feats = F.one_hot(club, groups).float() + 0.9 * torch.randn(n, groups, generator=g)
    same = club[:, None] == club[None, :]
    prob = torch.where(same, 0.28, 0.012)
    upper = torch.triu(torch.rand(n, n, generator=g) < prob, diagonal=1)
    edges = upper.nonzero().t()
    return feats, edges[:, torch.randperm(edges.shape[1], generator=g)]


def split_edges(edges, val=0.1, test=0.15):
    e = edges.shape[1]
    n_val, n_test = int(val * e), int(test * e)
    return edges[:, n_val + n_test:], edges[:, :n_val], edges[:, n_val:n_val + n_test]


def mean_adjacency(edges, n):
    adj = torch.zeros(n, n)
    adj[edges[0], edges[1]] = 1
    adj[edges[1], edges[0]] = 1
    return adj / adj.sum(1, keepdim=True).clamp(min=1)


def sample_negatives(n, count, known):
    out = []
    while len(out) < count:
        u, v = torch.randint(n, (2,)).tolist()
        if u != v and (min(u, v), max(u, v)) not in known:
            out.append((u, v))
    return torch.tensor(out).t()


class SAGEConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.neigh = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, adj):
        return self.own(x) + self.neigh(adj @ x)


class LinkPredictor(nn.Module):
    def __init__(self, d_in, hidden=32, d_out=16):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(d_in, hidden), SAGEConv(hidden, d_out)
        self.dropout = nn.Dropout(0.2)

    def encode(self, x, adj):
        h = self.dropout(F.relu(self.conv1(x, adj)))
        return self.conv2(h, adj)

    def decode(self, z, pairs):
        return (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)


def auc(pos, neg):
    wins = (pos[:, None] > neg[None, :]).float() + 0.5 * (pos[:, None] == neg[None, :]).float()
    return wins.mean().item()


@torch.no_grad()
def evaluate(model, x, adj, pos, neg):
    model.eval()
    z = model.encode(x, adj)
    return auc(model.decode(z, pos), model.decode(z, neg))


def run(epochs=100):
    torch.manual_seed(4)
    x, edges = make_graph()
    n = x.shape[0]
    known = set(map(tuple, edges.t().tolist()))
    train_pos, val_pos, test_pos = split_edges(edges)
    val_neg, test_neg = (sample_negatives(n, p.shape[1], known) for p in (val_pos, test_pos))
    adj = mean_adjacency(edges, n)

    model = LinkPredictor(x.shape[1])
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = set(map(tuple, train_pos.t().tolist()))
    best_val, best_test = 0.0, 0.0
    for epoch in range(1, epochs + 1):
        model.train()
        opt.zero_grad()
        z = model.encode(x, adj)
        train_neg = sample_negatives(n, train_pos.shape[1], seen)
        scores = torch.cat([model.decode(z, train_pos), model.decode(z, train_neg)])
        target = torch.cat([torch.ones(train_pos.shape[1]), torch.zeros(train_neg.shape[1])])
        loss = F.binary_cross_entropy_with_logits(scores, target)
        loss.backward()
        opt.step()
        if epoch % 10 == 0:
            val_auc = evaluate(model, x, adj, val_pos, val_neg)
            test_auc = evaluate(model, x, adj, test_pos, test_neg)
            if val_auc > best_val:
                best_val, best_test = val_auc, test_auc
            print(f"{epoch:4d}  loss {loss.item():.4f}  val auc {val_auc:.3f}")
    print(f"test auc at the best val auc: {best_test:.3f}")


run()
