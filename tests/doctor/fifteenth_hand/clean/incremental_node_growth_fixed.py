"""Class-incremental learner: a grown set of nodes per class on top of a trained embedding."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)
N_TASKS, PER_TASK, DIM = 3, 4, 16
N_CLASSES = N_TASKS * PER_TASK


def draw(n_per_class, seed):
    """Every class is made of a few clusters; some classes are harder than others."""
    g = torch.Generator().manual_seed(seed)
    c = torch.Generator().manual_seed(3)
    xs, ys = [], []
    for k in range(N_CLASSES):
        centres = 1.6 * torch.randn(1 + k % 4, DIM, generator=c)
        pick = torch.randint(0, len(centres), (n_per_class,), generator=g)
        xs.append(centres[pick] + (0.9 + 0.1 * (k % 3)) * torch.randn(n_per_class, DIM, generator=g))
        ys.append(torch.full((n_per_class,), k))
    return torch.cat(xs), torch.cat(ys)


class Embedding(nn.Module):
    def __init__(self, out=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, out))
        self.head = nn.Linear(out, N_CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.net(x)))


class IncrementalClassifier:
    def __init__(self, embed, max_nodes=4, wanted=0.9):
        self.embed, self.max_nodes, self.wanted = embed, max_nodes, wanted
        self.nodes, self.count = {}, {}

    @torch.no_grad()
    def features(self, x):
        self.embed.eval()
        return torch.relu(self.embed.net(x))

    def fit_nodes(self, x, k):
        f = self.features(x)
        nodes = f[torch.randperm(len(f), generator=torch.Generator().manual_seed(k))[:self.count[k]]].clone()
        for _ in range(10):
            near = torch.cdist(f, nodes).argmin(1)
            for j in range(len(nodes)):
                if (near == j).any():
                    nodes[j] = f[near == j].mean(0)
        self.nodes[k] = nodes

    def predict(self, x):
        f, ks = self.features(x), sorted(self.nodes)
        dist = torch.stack([torch.cdist(f, self.nodes[k]).min(1).values for k in ks], dim=1)
        return torch.tensor(ks)[dist.argmin(1)]

    def accuracy_per_class(self, x, y):
        pred = self.predict(x)
        return {k: (pred[y == k] == k).float().mean().item() for k in self.nodes}


def train_embedding(x, y, epochs=6):
    model = Embedding()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        model.train()
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"embedding trained, last loss {loss.item():.3f}")
    return model


def main():
    (x_train, y_train), (x_val, y_val), (x_test, y_test) = draw(60, 1), draw(25, 2), draw(40, 4)
    first = y_train < PER_TASK
    learner = IncrementalClassifier(train_embedding(x_train[first], y_train[first]))
    for task in range(N_TASKS):
        new = range(task * PER_TASK, (task + 1) * PER_TASK)
        for k in new:
            learner.count[k] = 1
            learner.fit_nodes(x_train[y_train == k], k)
        for _ in range(learner.max_nodes - 1):
            accuracy = learner.accuracy_per_class(x_val, y_val)
            for k in [k for k, a in accuracy.items() if a < learner.wanted and learner.count[k] < learner.max_nodes]:
                old = learner.nodes[k]
                learner.count[k] += 1
                learner.fit_nodes(x_train[y_train == k], k)
                if learner.accuracy_per_class(x_val, y_val)[k] < accuracy[k]:
                    learner.nodes[k] = old
        seen = y_test < (task + 1) * PER_TASK
        acc = (learner.predict(x_test[seen]) == y_test[seen]).float().mean().item()
        print(f"task {task}: nodes {[len(learner.nodes[k]) for k in sorted(learner.nodes)]} test accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
