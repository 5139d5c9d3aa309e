"""Advantage actor-critic in a 5x5 grid with a goal and a pit; eight copies of the world, short rollouts."""
import argparse

import torch
import torch.nn as nn
from torch.distributions import Categorical


class GridWorld:
    moves = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])

    def __init__(self, copies, size=5, limit=20):
        self.copies, self.size, self.limit = copies, size, limit
        self.goal, self.pit = torch.tensor([4, 4]), torch.tensor([2, 2])
        self.reset(torch.ones(copies, dtype=torch.bool), first=True)

    def reset(self, which, first=False):
        if first:
            self.pos = torch.zeros(self.copies, 2, dtype=torch.long)
            self.age = torch.zeros(self.copies, dtype=torch.long)
        self.pos[which] = torch.randint(0, 2, (int(which.sum()), 2))
        self.age[which] = 0

    def observe(self):
        flat = self.pos[:, 0] * self.size + self.pos[:, 1]
        return nn.functional.one_hot(flat, self.size**2).float()

    def step(self, actions):
        self.pos = (self.pos + self.moves[actions]).clamp(0, self.size - 1)
        self.age += 1
        won = (self.pos == self.goal).all(1)
        lost = (self.pos == self.pit).all(1)
        reward = won.float() - lost.float() - 0.02
        done = won | lost | (self.age >= self.limit)
        self.reset(done)
        return self.observe(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, inputs, actions, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


def compute_returns(next_value, rewards, masks, gamma):
    R = next_value
    returns = []
    for step in reversed(range(len(rewards))):
        R = rewards[step] + gamma * R
        returns.insert(0, R)
    return torch.stack(returns)


@torch.no_grad()
def evaluate(model, episodes=32):
    world = GridWorld(episodes)
    state, total = world.observe(), torch.zeros(episodes)
    alive = torch.ones(episodes)
    for _ in range(world.limit):
        dist, _ = model(state)
        state, reward, done = world.step(dist.probs.argmax(-1))
        total += reward * alive
        alive *= 1 - done
    return total.mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rollout", type=int, default=10)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--entropy", type=float, default=0.02)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(8)

    envs = GridWorld(8)
    model = ActorCritic(25, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    state = envs.observe()
    for update in range(args.updates):
        log_probs, values, rewards, masks, entropies = [], [], [], [], []
        for _ in range(args.rollout):
            dist, value = model(state)
            action = dist.sample()
            state, reward, done = envs.step(action)
            log_probs.append(dist.log_prob(action))
            values.append(value)
            rewards.append(reward)
            masks.append(1 - done)
            entropies.append(dist.entropy())
        with torch.no_grad():
            _, next_value = model(state)
        returns = compute_returns(next_value, rewards, masks, args.gamma)
        advantage = returns - torch.stack(values)
        actor_loss = -(torch.stack(log_probs) * advantage.detach()).mean()
        critic_loss = advantage.pow(2).mean()
        entropy = torch.stack(entropies).mean()
        loss = actor_loss + 0.5 * critic_loss - args.entropy * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if update % 30 == 29:
            print(f"update {update + 1} entropy {entropy.item():.3f} score {evaluate(model):.3f}")


if __name__ == "__main__":
    main()
