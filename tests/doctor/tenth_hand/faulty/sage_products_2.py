"""GraphSAGE on a graph of products: neighbours are sampled, nodes come in mini-batches."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_graph(nodes=1200, classes=5, degree=10, seed=0):
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (nodes,), generator=gen)
    centers = torch.randn(classes, 16, generator=gen)
    features = 0.5 * centers[labels] + torch.randn(nodes, 16, generator=gen)
    neighbours = []
    for node in range(nodes):
        alike = (labels == labels[node]).float() * 6 + 1
        alike[node] = 0
        neighbours.append(torch.multinomial(alike, degree, generator=gen))
    return features, torch.stack(neighbours), labels


class SAGEConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin_self = nn.Linear(cin, cout)
        self.lin_neigh = nn.Linear(cin, cout, bias=False)

    def forward(self, x_self, x_neigh):
        return self.lin_self(x_self) + self.lin_neigh(x_neigh.mean(dim=-2))


class GraphSAGE(nn.Module):
    def __init__(self, cin, hidden, cout):
        super().__init__()
        self.conv1 = SAGEConv(cin, hidden)
        self.conv2 = SAGEConv(hidden, cout)

    def forward(self, x, nodes, hop1, hop2):
        """nodes (b), hop1 (b, k), hop2 (b, k, k): numbers of nodes; gives log-probabilities (b, classes)."""
        h_nodes = F.relu(self.conv1(x[nodes], x[hop1]))
        h_hop1 = F.relu(self.conv1(x[hop1], x[hop2]))
        h_nodes = F.dropout(h_nodes, p=0.3, training=self.training)
        h_hop1 = F.dropout(h_hop1, p=0.3, training=self.training)
        out = self.conv2(h_nodes, h_hop1)
        return F.log_softmax(out, dim=0)


def sample_neighbours(table, nodes, k):
    columns = torch.randint(0, table.size(1), (*nodes.shape, k))
    return torch.gather(table[nodes], -1, columns)


def batches(nodes, table, size, k, shuffle):
    order = torch.randperm(len(nodes)) if shuffle else torch.arange(len(nodes))
    for chunk in nodes[order].split(size):
        hop1 = sample_neighbours(table, chunk, k)
        yield chunk, hop1, sample_neighbours(table, hop1, k)


@torch.no_grad()
def accuracy(model, x, y, nodes, table):
    model.eval()
    right = 0
    for chunk, hop1, hop2 in batches(nodes, table, 200, 5, shuffle=False):
        right += (model(x, chunk, hop1, hop2).argmax(dim=-1) == y[chunk]).sum().item()
    return right / len(nodes)


def run():
    torch.manual_seed(21)
    x, table, y = make_graph()
    perm = torch.randperm(len(y))
    train_idx, val_idx, test_idx = perm[:600], perm[600:900], perm[900:]
    model = GraphSAGE(x.size(1), 32, int(y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    best_val, best_state = 0.0, None
    for epoch in range(6):
        model.train()
        for chunk, hop1, hop2 in batches(train_idx, table, 100, 5, shuffle=True):
            optimizer.zero_grad()
            loss = F.nll_loss(model(x, chunk, hop1, hop2), y[chunk])
            loss.backward()
            optimizer.step()
        val_acc = accuracy(model, x, y, val_idx, table)
        if val_acc > best_val:
            best_val = val_acc
            best_state = copy.deepcopy(model.state_dict())
        print(f"Epoch {epoch:02d} loss {loss.item():.3f} val {val_acc:.3f} best {best_val:.3f}")
    model.load_state_dict(best_state)
    print(f"Test {accuracy(model, x, y, test_idx, table):.3f}")


if __name__ == "__main__":
    run()
