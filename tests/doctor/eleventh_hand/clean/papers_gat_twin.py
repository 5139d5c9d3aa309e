"""Subjects of papers from citations: graph attention on one graph with masks, after the pyGAT script."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=72)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--weight_decay", type=float, default=5e-4)
parser.add_argument("--hidden", type=int, default=8)
parser.add_argument("--nb_heads", type=int, default=4)
parser.add_argument("--dropout", type=float, default=0.5)
parser.add_argument("--alpha", type=float, default=0.2)
args = parser.parse_args()
torch.manual_seed(args.seed)


def load_data(nodes=420, classes=5, words=120):
    labels = torch.arange(nodes) % classes
    labels = labels[torch.randperm(nodes)]
    topics = torch.rand(classes, words) * 0.16
    features = (torch.rand(nodes, words) < 0.05 + topics[labels]).float()
    same = labels[:, None] == labels[None, :]
    adj = torch.rand(nodes, nodes) < torch.where(same, 0.020, 0.004)
    adj = (adj | adj.t()).float() + torch.eye(nodes)
    order = torch.randperm(nodes)
    features = features / features.sum(1, keepdim=True).clamp(min=1)
    return adj.clamp(max=1), features, labels, order[:80], order[80:200], order[200:]


class GraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features, dropout, alpha, concat=True):
        super().__init__()
        self.dropout, self.concat = dropout, concat
        self.W = nn.Parameter(nn.init.xavier_uniform_(torch.empty(in_features, out_features), gain=1.414))
        self.a = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * out_features, 1), gain=1.414))
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h, adj):
        Wh = h @ self.W
        half = Wh.size(1)
        e = self.leakyrelu(Wh @ self.a[:half] + (Wh @ self.a[half:]).t())
        attention = torch.where(adj > 0, e, torch.full_like(e, -9e15))
        attention = F.softmax(attention, dim=1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        h_prime = attention @ Wh
        return F.elu(h_prime) if self.concat else h_prime


class GAT(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout, alpha, nheads):
        super().__init__()
        self.dropout = dropout
        self.heads = nn.ModuleList(GraphAttentionLayer(nfeat, nhid, dropout, alpha) for _ in range(nheads))
        self.out_att = GraphAttentionLayer(nhid * nheads, nclass, dropout, alpha, concat=False)

    def forward(self, x, adj):
        x = F.dropout(x, self.dropout, training=self.training)
        x = torch.cat([head(x, adj) for head in self.heads], dim=1)
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.out_att(x, adj), dim=1)


def accuracy(output, labels):
    return (output.argmax(1) == labels).double().mean()


adj, features, labels, idx_train, idx_val, idx_test = load_data()
model = GAT(features.shape[1], args.hidden, int(labels.max()) + 1, args.dropout, args.alpha, args.nb_heads)
optimizer = optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)


def train(epoch):
    t = time.time()
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    acc_train = accuracy(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        output = model(features, adj)
    loss_val = F.nll_loss(output[idx_val], labels[idx_val])
    acc_val = accuracy(output[idx_val], labels[idx_val])
    if epoch % 10 == 9:
        print(f"Epoch: {epoch + 1:04d} loss_train: {loss_train.item():.4f} acc_train: {acc_train:.4f} loss_val: {loss_val.item():.4f} acc_val: {acc_val:.4f} time: {time.time() - t:.3f}s")


for epoch in range(args.epochs):
    train(epoch)
model.eval()
with torch.no_grad():
    output = model(features, adj)
print(f"Test set results: loss= {F.nll_loss(output[idx_test], labels[idx_test]).item():.4f} accuracy= {accuracy(output[idx_test], labels[idx_test]):.4f}")
