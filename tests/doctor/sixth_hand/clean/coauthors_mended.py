"""Fields of authors in a graph of those who write together, by attention over neighbours."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def community(nodes=240, fields=4, features=32, seed=23):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, fields, (nodes,), generator=generator)
    alike = labels[:, None] == labels[None, :]
    chance = torch.where(alike, 0.06, 0.008)
    edges = torch.rand(nodes, nodes, generator=generator) < chance
    adjacency = edges | edges.T | torch.eye(nodes, dtype=torch.bool)
    words = torch.randn(fields, features, generator=generator)
    x = words[labels] + 2.0 * torch.randn(nodes, features, generator=generator)
    order = torch.randperm(nodes, generator=generator)
    return x, adjacency, labels, order[:100], order[100:150], order[150:]


class Attention(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.source, self.target = nn.Linear(outputs, 1, bias=False), nn.Linear(outputs, 1, bias=False)

    def forward(self, x, adjacency):
        h = self.linear(x)
        scores = F.leaky_relu(self.target(h) + self.source(h).T, 0.2).masked_fill(~adjacency, float("-inf"))
        return scores.softmax(dim=1) @ h


class GAT(nn.Module):
    def __init__(self, inputs, hidden, outputs, dropout=0.4):
        super().__init__()
        self.first, self.second = Attention(inputs, hidden), Attention(hidden, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, adjacency):
        h = F.elu(self.first(self.dropout(x), adjacency))
        return self.second(self.dropout(h), adjacency)


class Trainer:
    def __init__(self, model, data):
        self.model = model
        self.x, self.adjacency, self.labels, self.train_nodes, self.valid_nodes, self.test_nodes = data
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)

    def step(self):
        self.model.train()
        self.optimizer.zero_grad()
        scores = self.model(self.x, self.adjacency)
        loss = F.cross_entropy(scores[self.train_nodes], self.labels[self.train_nodes])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def accuracy(self, nodes):
        self.model.eval()
        guess = self.model(self.x, self.adjacency)[nodes].argmax(1)
        return (guess == self.labels[nodes]).float().mean().item()

    def fit(self, epochs):
        best = 0.0
        for epoch in range(1, epochs + 1):
            loss = self.step()
            valid = self.accuracy(self.valid_nodes)
            best = max(best, valid)
            if epoch % 10 == 0:
                print(f"epoch {epoch}: loss {loss:.3f}, validation {valid:.3f}, test {self.accuracy(self.test_nodes):.3f}")
        return best


if __name__ == "__main__":
    torch.manual_seed(23)
    data = community()
    print("best:", Trainer(GAT(32, 16, 4), data).fit(40))
