import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(10)


def citation_graph(n=400, classes=5, words=60):
    y = torch.randint(0, classes, (n,))
    same = y.unsqueeze(0) == y.unsqueeze(1)
    adj = (torch.rand(n, n) < torch.where(same, 0.03, 0.004)).float().triu(1)
    adj = adj + adj.t()
    topic = (torch.rand(classes, words) < 0.15).float()
    x = ((torch.rand(n, words) < 0.06 + 0.25 * topic[y])).float()
    order = torch.randperm(n)
    masks = []
    for part in (order[:100], order[100:200], order[200:]):
        mask = torch.zeros(n, dtype=torch.bool)
        mask[part] = True
        masks.append(mask)
    return x / x.sum(1, keepdim=True).clamp(min=1), adj, y, masks


def normalise(adj):
    adj = adj + torch.eye(len(adj))
    d = adj.sum(1).pow(-0.5)
    return d.unsqueeze(1) * adj * d.unsqueeze(0)


class GraphConvolution(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c_in, c_out))
        self.bias = nn.Parameter(torch.zeros(c_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout=0.5):
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(nfeat, nhid), GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


x, adj, y, (train_mask, val_mask, test_mask) = citation_graph()
adj = normalise(adj)
model = GCN(x.size(1), 16, 5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, adj)
    loss = F.nll_loss(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = model(x, adj).argmax(dim=1)
    return [(pred[m] == y[m]).float().mean().item() for m in (train_mask, val_mask, test_mask)]


best_val = final_test = 0.0
for epoch in range(1, 101):
    loss = train()
    train_acc, val_acc, test_acc = test()
    if val_acc > best_val:
        best_val, final_test = val_acc, test_acc
    if epoch % 20 == 0:
        print(f"Epoch {epoch:03d} loss {loss:.3f} train {train_acc:.3f} val {val_acc:.3f} test {final_test:.3f}")
