"""Two-tower retrieval: queries and items in one space, negatives from the batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)

N_USERS, N_ITEMS, TOPICS = 600, 200, 12
BATCH_SIZE, EPOCHS, TEMPERATURE = 100, 5, 0.1

# -- data: a user's vector of interests, an item's vector of contents, and what was clicked
topics = torch.randn(TOPICS, 24)
item_topic = torch.arange(N_ITEMS) % TOPICS
item_features = topics[item_topic] + 0.4 * torch.randn(N_ITEMS, 24)
user_topic = torch.randint(0, TOPICS, (N_USERS,))
user_features = topics[user_topic].roll(3, dims=1) + 0.6 * torch.randn(N_USERS, 24)
affinity = (user_topic[:, None] == item_topic[None]).float() * 8 + 0.05
clicked = torch.multinomial(affinity, 3)  # three clicks of each user
train_pairs = torch.stack([torch.arange(N_USERS).repeat(2), clicked[:, :2].T.reshape(-1)], dim=1)
held_out = clicked[:, 2]


class Tower(nn.Module):
    def __init__(self, features, dim=32):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        x = self.mlp(x)
        return x / x.norm(dim=1, keepdim=True).clamp(min=1e-6)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_tower = Tower(24)
        self.item_tower = Tower(24)
        self.log_scale = nn.Parameter(torch.tensor(1 / TEMPERATURE).log())

    def forward(self, users, items):
        return self.query_tower(users), self.item_tower(items)


def in_batch_loss(q, k, item_ids, log_scale):
    logits = q @ k.T * log_scale.exp().clamp(max=100)
    # the same item further down the batch is no negative
    same = (item_ids[:, None] == item_ids[None]) & ~torch.eye(len(item_ids), dtype=torch.bool)
    logits = logits.masked_fill(same, -1e4)
    return F.cross_entropy(logits, torch.arange(len(q)))


@torch.no_grad()
def recall_at(model, k=8):
    model.eval()
    q, items = model(user_features, item_features)
    scores = q @ items.T
    scores[torch.arange(N_USERS)[:, None], clicked[:, :2]] = -1e4  # what was seen in training is not counted
    return (scores.topk(k, dim=1).indices == held_out[:, None]).any(1).float().mean().item()


model = TwoTower()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(EPOCHS):
    model.train()
    for pairs in train_pairs[torch.randperm(len(train_pairs))].split(BATCH_SIZE):
        users, items = pairs[:, 0], pairs[:, 1]
        q, k = model(user_features[users], item_features[items])
        loss = in_batch_loss(q, k, items, model.log_scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f} recall@8 {recall_at(model):.3f}")
