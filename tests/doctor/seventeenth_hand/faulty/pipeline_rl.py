"""GRPO-style training of a small policy on a digit-copy task with group-relative advantages."""
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

GROUP, PROMPTS, LENGTH, VOCAB = 8, 16, 4, 6


class Policy(nn.Module):
    """Reads a prompt of digits and writes an answer of the same length."""

    def __init__(self, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB + 1, 24)
        self.encoder = nn.GRU(24, hidden, batch_first=True)
        self.decoder = nn.GRU(24 + 24, hidden, batch_first=True)
        self.head = nn.Linear(hidden, VOCAB)

    def forward(self, prompt, previous):
        _, state = self.encoder(self.embed(prompt))
        x = torch.cat([self.embed(previous), self.embed(prompt)], dim=-1)
        out, _ = self.decoder(x, state)
        return self.head(out)

    @torch.no_grad()
    def generate(self, prompt, greedy=False):
        _, state = self.encoder(self.embed(prompt))
        token = torch.full((len(prompt), 1), VOCAB)
        tokens, logprobs = [], []
        for t in range(prompt.shape[1]):
            x = torch.cat([self.embed(token), self.embed(prompt[:, t:t + 1])], dim=-1)
            out, state = self.decoder(x, state)
            dist = torch.distributions.Categorical(logits=self.head(out[:, 0]))
            token = dist.logits.argmax(-1, keepdim=True) if greedy else dist.sample()[:, None]
            tokens.append(token)
            logprobs.append(dist.log_prob(token[:, 0]))
        return torch.cat(tokens, 1), torch.stack(logprobs, 1)


def verify(prompt, answer):
    """Reward: the share of digits that are the mirror image of the prompt's."""
    return ((VOCAB - 1 - prompt) == answer).float().mean(dim=1)


def populate_rl_data(rollouts):
    df_init = pd.DataFrame([
        {"group_id": r["group_id"], "rollout_index": r["rollout_index"], "rollout_reward": r["reward"]}
        for r in rollouts])
    df_stats = df_init[df_init["rollout_index"] == 0].groupby("group_id").agg(
        rollout_reward_mean=("rollout_reward", "mean"),
        rollout_reward_std=("rollout_reward", lambda s: s.std(ddof=0)),
    ).reset_index()
    df = pd.merge(df_init, df_stats, on="group_id", how="left")
    df["advantage"] = (df["rollout_reward"] - df["rollout_reward_mean"]) / (df["rollout_reward_std"] + 1e-2)
    for rollout, advantage in zip(rollouts, df["advantage"]):
        rollout["advantage"] = advantage
    return rollouts


def make_rollouts(policy, generator):
    prompts = torch.randint(0, VOCAB, (PROMPTS, LENGTH), generator=generator)
    prompts = prompts.repeat_interleave(GROUP, dim=0)
    answers, logprobs = policy.generate(prompts)
    rewards = verify(prompts, answers)
    return [{"group_id": i // GROUP, "rollout_index": i % GROUP, "prompt": prompts[i], "answer": answers[i],
             "logprobs": logprobs[i], "reward": rewards[i].item()} for i in range(len(prompts))]


def rl_step(policy, rollouts, epsilon=0.2):
    prompt = torch.stack([r["prompt"] for r in rollouts])
    answer = torch.stack([r["answer"] for r in rollouts])
    old_logprobs = torch.stack([r["logprobs"] for r in rollouts])
    advantages = torch.tensor([r["advantage"] for r in rollouts], dtype=torch.float32)[:, None]
    previous = torch.cat([torch.full((len(answer), 1), VOCAB), answer[:, :-1]], dim=1)
    logits = policy(prompt, previous)
    new_logprobs = -F.cross_entropy(logits.transpose(1, 2), answer, reduction="none")
    ratio = (new_logprobs - old_logprobs).exp()
    surr1 = ratio * advantages
    surr2 = ratio.clamp(1 - epsilon, 1 + epsilon) * advantages
    return -torch.min(surr1, surr2).mean()


def evaluate(policy):
    prompts = torch.randint(0, VOCAB, (256, LENGTH), generator=torch.Generator().manual_seed(77))
    policy.eval()
    answers, _ = policy.generate(prompts, greedy=True)
    policy.train()
    return verify(prompts, answers).mean().item()


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(1, 61):
        rollouts = populate_rl_data(make_rollouts(policy, generator))
        for _ in range(2):
            loss = rl_step(policy, rollouts)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        if step % 10 == 0:
            rewards = np.mean([r["reward"] for r in rollouts])
            advantages = np.array([r["advantage"] for r in rollouts])
            print(f"step {step}: reward {rewards:.3f}, advantage mean {advantages.mean():.3f} "
                  f"max {advantages.max():.2f}, eval reward {evaluate(policy):.3f}")


if __name__ == "__main__":
    main()
