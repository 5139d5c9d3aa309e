import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)

N_MOVES, FEATS = 9, 18
expert = nn.Sequential(nn.Linear(FEATS, 32), nn.Tanh(), nn.Linear(32, N_MOVES))
for p in expert.parameters():
    p.requires_grad_(False)


def play(n):
    board = torch.randn(n, FEATS)
    legal = torch.ones(n, N_MOVES)
    tight = torch.rand(n) < 0.01
    legal[tight, 7] = 0.0
    scores = 4 * expert(board).masked_fill(legal == 0, -1e9)
    return board, legal, scores.argmax(1)


board, legal, move = play(4000)
board_t, legal_t, move_t = play(800)


class PolicyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(FEATS, 64)
        self.fc2 = nn.Linear(64, N_MOVES)

    def forward(self, x, mask):
        prob = torch.softmax(self.fc2(F.relu(self.fc1(x))), dim=1) * mask
        return prob / prob.sum(1, keepdim=True)


policy = PolicyNet()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)


def clone_loss(prob, target):
    onehot = F.one_hot(target, N_MOVES).float()
    log_prob = torch.log(prob)
    return -(onehot * log_prob).sum(dim=1).mean()


for epoch in range(6):
    policy.train()
    losses = []
    for idx in torch.randperm(len(board)).split(40):
        loss = clone_loss(policy(board[idx], legal[idx]), move[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    policy.eval()
    with torch.no_grad():
        agree = (policy(board_t, legal_t).argmax(1) == move_t).float().mean().item()
    print(f"epoch {epoch} first losses {[round(v, 3) for v in losses[:4]]} last {losses[-1]:.4f} agreement on new boards {agree:.3f}")
