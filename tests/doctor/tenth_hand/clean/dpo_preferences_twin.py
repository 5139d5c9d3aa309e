"""Direct preference optimisation of a small causal model: a short supervised stage, then pairs of answers."""
import random

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

PAD, BOS, SEP, EOS, WORDS = 0, 1, 2, 3, 40
BETA = 0.2


def pairs(count, seed):
    """A good answer repeats words of the question; a bad one makes them up, and is often longer."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        question = [rng.randrange(4, 4 + WORDS) for _ in range(rng.randint(4, 8))]
        good = rng.sample(question, rng.randint(2, 4))
        bad = [rng.randrange(4, 4 + WORDS) for _ in range(rng.randint(2, 7))]
        rows.append(([BOS, *question, SEP], [*good, EOS], [*bad, EOS]))
    return rows


def collate(rows):
    batch = {}
    for name, column in (("chosen", 1), ("rejected", 2)):
        ids = pad_sequence([torch.tensor(r[0] + r[column]) for r in rows], batch_first=True, padding_value=PAD)
        mask = torch.zeros_like(ids)
        for i, r in enumerate(rows):
            mask[i, len(r[0]) : len(r[0]) + len(r[column])] = 1
        batch[name] = ids
        batch[name + "_mask"] = mask
    return batch


def sequence_logps(model, ids, answer_mask):
    """Sum of the logarithms of the answer's tokens: (rows)."""
    logits = model(input_ids=ids, attention_mask=(ids != PAD).long()).logits[:, :-1]
    logps = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return torch.einsum("bt,bt->b", logps, answer_mask[:, 1:].to(logps.dtype))


def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected):
    chosen_rewards = BETA * (policy_chosen - ref_chosen)
    rejected_rewards = BETA * (policy_rejected - ref_rejected)
    return -F.logsigmoid(chosen_rewards - rejected_rewards).mean(), chosen_rewards - rejected_rewards


def supervised(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for batch in loader:
        labels = batch["chosen"].masked_fill(batch["chosen_mask"] == 0, -100)
        loss = model(input_ids=batch["chosen"], attention_mask=(batch["chosen"] != PAD).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"supervised loss {loss.item():.3f}")


def main():
    torch.manual_seed(90)
    random.seed(90)
    loader = DataLoader(pairs(512, 1), batch_size=32, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(pairs(96, 2), batch_size=48, collate_fn=collate)
    config = GPT2Config(
        vocab_size=4 + WORDS, n_positions=32, n_embd=48, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS,
    )
    policy = GPT2LMHeadModel(config)
    supervised(policy, loader)
    reference = GPT2LMHeadModel(config)
    reference.load_state_dict(policy.state_dict())
    reference.eval()

    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4)
    for epoch in range(2):
        policy.train()
        for batch in loader:
            chosen = sequence_logps(policy, batch["chosen"], batch["chosen_mask"])
            rejected = sequence_logps(policy, batch["rejected"], batch["rejected_mask"])
            with torch.no_grad():
                ref_chosen = sequence_logps(reference, batch["chosen"], batch["chosen_mask"])
                ref_rejected = sequence_logps(reference, batch["rejected"], batch["rejected_mask"])
            loss, _ = dpo_loss(chosen, rejected, ref_chosen, ref_rejected)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        policy.eval()
        with torch.no_grad():
            margins = []
            for batch in val_loader:
                logps = [sequence_logps(m, batch[n], batch[n + "_mask"]) for m in (policy, reference) for n in ("chosen", "rejected")]
                margins.append(dpo_loss(*logps)[1])
        margins = torch.cat(margins)
        print(f"epoch {epoch} loss {loss.item():.4f} margin {margins.mean():.3f} accuracy {(margins > 0).float().mean():.3f}")


if __name__ == "__main__":
    main()
