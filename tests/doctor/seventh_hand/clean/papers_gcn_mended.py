"""Graph convolution over drawn citations: two layers, transductive."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parameter import Parameter


def citations(nodes=400, classes=4, features=64):
    label = torch.arange(nodes) % classes
    same = label[:, None] == label[None, :]
    edges = torch.rand(nodes, nodes) < torch.where(same, 0.03, 0.008)
    edges[::97], edges[:, ::97] = False, False
    edges = (edges | edges.T).float().fill_diagonal_(1)
    degree = edges.sum(1).pow(-0.5)
    words = (torch.rand(nodes, features) < 0.06 + 0.10 * ((torch.arange(features) % classes)[None, :] == label[:, None])).float()
    order = torch.randperm(nodes)
    return words, degree[:, None] * edges * degree[None, :], label, order[:80], order[80:160], order[160:]


class GraphConvolution(nn.Module):
    """Simple GCN layer, similar to https://arxiv.org/abs/1609.02907"""

    def __init__(self, in_features, out_features):
        super().__init__()
        bound = 1.0 / math.sqrt(out_features)
        self.weight = Parameter(torch.empty(in_features, out_features).uniform_(-bound, bound))
        self.bias = Parameter(torch.zeros(out_features))

    def forward(self, x, adj):
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(nfeat, nhid), GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


def accuracy(output, labels):
    return (output.max(1)[1] == labels).double().mean().item()


def train(epoch):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    if epoch % 20 == 0:
        print(f"Epoch {epoch:03d} loss_train {loss_train.item():.4f} acc_train {accuracy(output[idx_train], labels[idx_train]):.3f} acc_val {validate(idx_val):.3f}")


def validate(rows):
    model.eval()
    with torch.no_grad():
        output = model(features, adj)
    return accuracy(output[rows], labels[rows])


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--weight_decay", type=float, default=5e-4)
parser.add_argument("--hidden", type=int, default=16)
parser.add_argument("--dropout", type=float, default=0.5)
args = parser.parse_args()
torch.manual_seed(42)
features, adj, labels, idx_train, idx_val, idx_test = citations()
model = GCN(features.shape[1], args.hidden, 4, args.dropout)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
for epoch in range(args.epochs):
    train(epoch)
print("Test set results: accuracy", validate(idx_test))
