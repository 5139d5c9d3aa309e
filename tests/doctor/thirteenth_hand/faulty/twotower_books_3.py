"""Two towers for a book shop: who reads what next (in-batch softmax plus drawn negatives)."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

USERS, BOOKS, GENRES, DIM = 500, 320, 8, 24
EPOCHS, BATCH, N_NEG, TOPK = 8, 128, 6, 10


def reading_lists(rng):
    genre = rng.integers(0, GENRES, BOOKS)
    popularity = rng.gamma(1.0, 1.0, BOOKS) + 0.2
    lists = []
    for _ in range(USERS):
        taste = rng.dirichlet(np.full(GENRES, 0.25))
        weight = popularity * taste[genre] + 1e-3
        n = rng.integers(10, 24)
        lists.append(rng.choice(BOOKS, n, replace=False, p=weight / weight.sum()))
    return genre, lists


class Interactions:
    """Leave the last book of each reader out; the one before it is for validation."""

    def __init__(self, lists, rng):
        self.rng = rng
        self.train = [row[:-2] for row in lists]
        self.val = np.array([row[-2] for row in lists])
        self.test = np.array([row[-1] for row in lists])
        self.pairs = np.array([(u, b) for u, row in enumerate(self.train) for b in row])
        self.seen = [set(row.tolist()) for row in self.train]

    def negatives(self, users):
        out = np.empty((len(users), N_NEG), dtype=np.int64)
        for i, u in enumerate(users):
            for j in range(N_NEG):
                b = self.rng.integers(BOOKS)
                while b in self.seen[u]:
                    b = self.rng.integers(BOOKS)
                out[i, j] = b
        return out

    def batches(self):
        order = self.rng.permutation(len(self.pairs))
        for i in range(0, len(order) - BATCH + 1, BATCH):
            rows = self.pairs[order[i : i + BATCH]]
            yield torch.from_numpy(rows[:, 0]), torch.from_numpy(rows[:, 1]), torch.from_numpy(self.negatives(rows[:, 0]))


class UserTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(USERS, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))

    def forward(self, u):
        return F.normalize(self.mlp(self.emb(u)), dim=-1)


class BookTower(nn.Module):
    def __init__(self, genre):
        super().__init__()
        self.register_buffer("genre", torch.from_numpy(genre))
        self.emb = nn.Embedding(BOOKS, DIM)
        self.genre_emb = nn.Embedding(GENRES, DIM)
        self.mlp = nn.Sequential(nn.Linear(2 * DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))

    def forward(self, b):
        return F.normalize(self.mlp(torch.cat([self.emb(b), self.genre_emb(self.genre[b])], -1)), dim=-1)


def loss_fn(user, book, user_vec, book_vec, neg_vec, scale):
    in_batch = user_vec @ book_vec.T
    same = (book[:, None] == book[None, :]) & ~torch.eye(len(book), dtype=torch.bool)
    in_batch = in_batch.masked_fill(same, -1e4)  # the same book in another row is no negative
    drawn = torch.einsum("bd,bnd->bn", user_vec, neg_vec)
    logits = torch.cat([in_batch, drawn], dim=1) * scale
    target = torch.zeros(len(user), dtype=torch.long)
    return F.cross_entropy(logits, target)


@torch.no_grad()
def hit_rate(user_tower, book_tower, data, target):
    user_tower.eval(), book_tower.eval()
    scores = user_tower(torch.arange(USERS)) @ book_tower(torch.arange(BOOKS)).T
    for u, row in enumerate(data.train):
        scores[u, row] = -1e9  # read already
    top = scores.topk(TOPK, dim=1).indices
    user_tower.train(), book_tower.train()
    return (top == torch.from_numpy(target)[:, None]).any(1).float().mean().item()


def main():
    rng = np.random.default_rng(11)
    torch.manual_seed(11)
    genre, lists = reading_lists(rng)
    data = Interactions(lists, rng)
    user_tower, book_tower = UserTower(), BookTower(genre)
    log_scale = nn.Parameter(torch.tensor(2.0))
    params = [*user_tower.parameters(), *book_tower.parameters(), log_scale]
    opt = torch.optim.Adam(params, lr=8e-3)
    best = 0.0
    for epoch in range(EPOCHS):
        losses = []
        for user, book, neg in data.batches():
            loss = loss_fn(user, book, user_tower(user), book_tower(book), book_tower(neg), log_scale.exp())
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        val = hit_rate(user_tower, book_tower, data, data.val)
        if val > best:
            best = val
            torch.save({"user": user_tower.state_dict(), "book": book_tower.state_dict()}, "towers.pt")
        print(f"epoch {epoch}  loss {np.mean(losses):.3f}  HR@{TOPK} {val:.3f}")
    state = torch.load("towers.pt")
    user_tower.load_state_dict(state["user"]), book_tower.load_state_dict(state["book"])
    print(f"test HR@{TOPK} {hit_rate(user_tower, book_tower, data, data.test):.3f}")


if __name__ == "__main__":
    main()
