import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
VOCAB, PROMPT, RESPONSE = 12, 3, 6
GROUP, PROMPTS_PER_STEP = 8, 16
CLIP, KL_COEF = 0.2, 0.3


class Actor(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.lm_head(self.rnn(self.emb(ids))[0])

    @torch.no_grad()
    def generate(self, prompts):
        ids = prompts
        for _ in range(RESPONSE):
            probs = F.softmax(self(ids)[:, -1], dim=-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
        return ids


def response_log_prob(model, ids):
    logp = F.log_softmax(model(ids[:, :-1]), dim=-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, PROMPT - 1:]


def sft_batch(n):
    """The style of the base model: go on counting, now and then with a skip."""
    ids = torch.randint(0, VOCAB, (n, 1))
    for _ in range(PROMPT + RESPONSE - 1):
        skip = 1 + (torch.rand(n, 1) < 0.3).long()
        ids = torch.cat([ids, (ids[:, -1:] + skip) % VOCAB], dim=1)
    return ids


def compute_reward(ids):
    return (ids[:, PROMPT:] % 3 == 0).float().mean(dim=1)


def kl_penalty(logprob, ref_logprob):
    """low_var_kl"""
    diff = (ref_logprob - logprob).clamp(-20, 20)
    return (diff.exp() - diff - 1).clamp(-10, 10)


def compute_policy_loss(old_log_prob, log_prob, advantages):
    ratio = torch.exp(log_prob - old_log_prob)
    return torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()


def update_policy(actor, ref, optimizer):
    prompts = sft_batch(PROMPTS_PER_STEP)[:, :PROMPT].repeat_interleave(GROUP, dim=0)
    ids = actor.generate(prompts)
    reward = compute_reward(ids).view(-1, GROUP)
    adv = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    with torch.no_grad():
        old_log_prob, ref_log_prob = response_log_prob(actor, ids), response_log_prob(ref, ids)
    log_prob = response_log_prob(actor, ids)
    policy_loss = compute_policy_loss(old_log_prob, log_prob, adv)
    kl_loss = kl_penalty(log_prob, ref_log_prob).mean()
    policy_loss = policy_loss - kl_loss * KL_COEF
    optimizer.zero_grad()
    policy_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
    optimizer.step()
    return {"actor/pg_loss": policy_loss.item(), "actor/kl_loss": kl_loss.item(), "critic/rewards": reward.mean().item()}


def main():
    actor = Actor()
    opt = torch.optim.AdamW(actor.parameters(), lr=3e-3)
    for step in range(300):
        ids = sft_batch(128)
        loss = F.cross_entropy(actor(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"sft loss {loss.item():.3f}")
    ref = copy.deepcopy(actor).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=5e-4, weight_decay=0.01)
    for step in range(150):
        metrics = update_policy(actor, ref, optimizer)
        if step % 30 == 29:
            print(step + 1, {k: round(v, 4) for k, v in metrics.items()})
    held_out = sft_batch(512)[:, :PROMPT]
    with torch.no_grad():
        ids = actor.generate(held_out)
        drift = (response_log_prob(actor, ids) - response_log_prob(ref, ids)).mean().item()
    print(f"held-out prompts: reward {compute_reward(ids).mean():.3f} (base {compute_reward(ref.generate(held_out)).mean():.3f}) kl to base {drift:.3f}")


if __name__ == "__main__":
    main()
