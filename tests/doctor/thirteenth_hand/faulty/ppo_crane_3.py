"""PPO on a small vectorised crane task, in one file (after the style of CleanRL).

The crane moves a hook along a rail and has to be at rest above the load.
"""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--num-envs", type=int, default=16)
    p.add_argument("--num-steps", type=int, default=64)
    p.add_argument("--total-updates", type=int, default=40)
    p.add_argument("--lr", type=float, default=2.5e-3)
    p.add_argument("--gamma", type=float, default=0.98)
    p.add_argument("--gae-lambda", type=float, default=0.95)
    p.add_argument("--num-minibatches", type=int, default=4)
    p.add_argument("--update-epochs", type=int, default=4)
    p.add_argument("--clip-coef", type=float, default=0.2)
    p.add_argument("--ent-coef", type=float, default=0.01)
    p.add_argument("--vf-coef", type=float, default=0.5)
    p.add_argument("--max-grad-norm", type=float, default=0.5)
    return p.parse_args()


class CraneVec:
    """Pos, speed, target and time; actions push left, none, right."""

    LIMIT = 40

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.pos, self.vel, self.goal = np.zeros(n), np.zeros(n), np.zeros(n)
        self.t = np.zeros(n, dtype=int)

    def _reset(self, who):
        k = who.sum()
        self.pos[who] = self.rng.uniform(-1, 1, k)
        self.goal[who] = self.rng.uniform(-1, 1, k)
        self.vel[who] = 0.0
        self.t[who] = 0

    def reset(self):
        self._reset(np.ones(self.n, dtype=bool))
        return self.obs()

    def obs(self):
        return np.stack([self.pos, self.vel, self.goal, self.goal - self.pos, self.t / self.LIMIT], 1).astype(np.float32)

    def step(self, action):
        self.vel = 0.8 * self.vel + 0.08 * (action - 1)
        self.pos = np.clip(self.pos + self.vel, -1.5, 1.5)
        self.t += 1
        gap = np.abs(self.goal - self.pos)
        landed = (gap < 0.06) & (np.abs(self.vel) < 0.06)
        reward = -0.1 * gap + 2.0 * landed
        timeout = self.t >= self.LIMIT
        final_obs = self.obs()
        done = landed | timeout
        self._reset(done)
        return self.obs(), reward.astype(np.float32), done, {"landed": landed, "final_obs": final_obs, "timeout": timeout & ~landed}


def layer_init(layer, std=np.sqrt(2), bias=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, n_act):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(obs_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(obs_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(), layer_init(nn.Linear(64, n_act), std=0.01))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


if __name__ == "__main__":
    args = parse_args()
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    envs = CraneVec(args.num_envs, np.random.default_rng(args.seed))
    agent = Agent(5, 3)
    optimizer = optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)

    obs = torch.zeros(args.num_steps, args.num_envs, 5)
    actions = torch.zeros(args.num_steps, args.num_envs)
    logprobs = torch.zeros(args.num_steps, args.num_envs)
    rewards = torch.zeros(args.num_steps, args.num_envs)
    dones = torch.zeros(args.num_steps, args.num_envs)
    values = torch.zeros(args.num_steps, args.num_envs)
    next_obs = torch.from_numpy(envs.reset())
    next_done = torch.zeros(args.num_envs)

    for update in range(1, args.total_updates + 1):
        optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / args.total_updates) * args.lr
        landed, ended = 0, 0
        for step in range(args.num_steps):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            nxt, reward, done, info = envs.step(action.numpy())
            rewards[step] = torch.from_numpy(reward)
            next_obs, next_done = torch.from_numpy(nxt), torch.from_numpy(done.astype(np.float32))
            landed += info["landed"].sum()
            ended += done.sum()

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            lastgaelam = 0
            for t in reversed(range(args.num_steps)):
                if t == args.num_steps - 1:
                    nextnonterminal = 1.0 - next_done
                    nextvalues = next_value
                else:
                    nextnonterminal = 1.0 - dones[t + 1]
                    nextvalues = values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
            returns = advantages + values

        b_obs = obs.reshape(-1, 5)
        b_logprobs = logprobs.reshape(-1)
        b_actions = actions.reshape(-1)
        b_advantages = advantages.reshape(-1)
        b_returns = returns.reshape(-1)
        b_inds = np.arange(batch_size)
        for epoch in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, batch_size, minibatch_size):
                end = start + minibatch_size
                mb_inds = b_inds[start:end]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions[mb_inds])
                logratio = newlogprob - b_logprobs[mb_inds]
                ratio = logratio.exp()
                mb_advantages = b_advantages[start:end]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                pg_loss1 = -mb_advantages * ratio
                pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(pg_loss1, pg_loss2).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + v_loss * args.vf_coef
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        if update % 5 == 0:
            print(f"update {update:3d}  landed {landed}/{ended}  reward {rewards.mean().item():.3f}  v_loss {v_loss.item():.3f}")
