"""Adapters (peft) on a small GPT-2 that was trained on ticket texts before.

First adapters and head learn on the tickets of January, are saved, and learn on with those of February.
"""

import random
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

TOPICS = {0: "printer paper toner jam scanner", 1: "login password account locked reset", 2: "invoice price refund paid charge"}
COMMON = "the my is not it please again since monday help we cannot our office still and".split()
WORDS = [w for t in TOPICS.values() for w in t.split()] + COMMON
PAD, BOS = 0, 1
STOI = {w: i + 2 for i, w in enumerate(WORDS)}
CONFIG = GPT2Config(vocab_size=len(STOI) + 2, n_positions=32, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                    bos_token_id=BOS, eos_token_id=PAD)


def ticket(rng):
    topic = rng.randrange(3)
    words = [rng.choice(TOPICS[topic].split()) for _ in range(rng.randint(2, 3))] + [rng.choice(COMMON) for _ in range(rng.randint(2, 12))]
    rng.shuffle(words)
    return [BOS] + [STOI[w] for w in words], topic


def batches(rows, size, rng):
    rows = rng.sample(rows, len(rows))
    for i in range(0, len(rows), size):
        part = rows[i : i + size]
        width = max(len(ids) for ids, _ in part)
        ids = torch.tensor([r + [PAD] * (width - len(r)) for r, _ in part])
        yield ids, (ids != PAD).long(), torch.tensor([y for _, y in part])


def pretrain(rows, rng):
    lm = GPT2LMHeadModel(CONFIG)
    opt = torch.optim.AdamW(lm.parameters(), lr=2e-3)
    for ids, mask, _ in batches(rows, 32, rng):
        out = lm(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
        opt.zero_grad()
        out.loss.backward()
        opt.step()
    print(f"language model: loss {out.loss.item():.3f}")
    return lm.transformer.state_dict()


def base_model(state):
    model = GPT2Model(CONFIG)
    model.load_state_dict(state)
    return model


class TicketClassifier(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(CONFIG.n_embd, 3)

    def forward(self, ids, mask):
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        last = mask.sum(1) - 1
        pooled = hidden[torch.arange(len(ids)), last]
        return self.head(pooled)


def make_optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3, weight_decay=0.01)


def fit(model, optimizer, rows, epochs, rng):
    for epoch in range(epochs):
        model.train()
        total = n = 0
        for ids, mask, y in batches(rows, 32, rng):
            loss = F.cross_entropy(model(ids, mask), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, n = total + loss.item() * len(y), n + len(y)
        print(f"  epoch {epoch}: loss {total / n:.3f}")


@torch.no_grad()
def accuracy(model, rows, rng):
    model.eval()
    hits = sum((model(ids, mask).argmax(1) == y).sum().item() for ids, mask, y in batches(rows, 64, rng))
    return hits / len(rows)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    state = pretrain([ticket(rng) for _ in range(1500)], rng)
    january, february, test = ([ticket(rng) for _ in range(n)] for n in (160, 320, 200))

    backbone = base_model(state)
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["c_attn"], fan_in_fan_out=True)
    model = TicketClassifier(backbone)
    optimizer = make_optimizer(model)
    model.backbone = get_peft_model(backbone, lora)
    print("january")
    fit(model, optimizer, january, 4, rng)
    print(f"test accuracy {accuracy(model, test, rng):.3f}")

    with tempfile.TemporaryDirectory() as folder:
        model.backbone.save_pretrained(folder)
        torch.save(model.head.state_dict(), f"{folder}/head.pt")
        resumed = TicketClassifier(PeftModel.from_pretrained(base_model(state), folder, is_trainable=True))
        resumed.head.load_state_dict(torch.load(f"{folder}/head.pt"))
    optimizer = make_optimizer(resumed)
    print("february")
    fit(resumed, optimizer, february, 3, rng)
    print(f"test accuracy {accuracy(resumed, test, rng):.3f}")


if __name__ == "__main__":
    main()
