"""Small talk with adapters: LoRA on a small Llama that was trained on plain text first (PEFT and a loop by hand)."""
import random
from dataclasses import dataclass

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

BOS, EOS, USER, BOT = 1, 2, 3, 4
PAD = EOS
WORDS = {w: i + 5 for i, w in enumerate("hello bye how are you fine thanks what is your name i am mia the weather sunny rainy cold nice to meet see soon like do tea coffee yes no".split())}


@dataclass
class Config:
    pretrain_steps: int = 60
    epochs: int = 4
    batch_size: int = 16
    lora_r: int = 8
    lora_alpha: int = 16
    lr: float = 1e-2
    seed: int = 3


TALK = [
    ("hello", "hello nice to meet you"), ("bye", "bye see you soon"), ("how are you", "i am fine thanks"),
    ("what is your name", "i am mia"), ("how is the weather", "the weather is cold"), ("do you like tea", "yes i like tea"),
    ("do you like coffee", "no thanks"), ("see you soon", "yes see you soon bye"),
]


def encode(text):
    return [WORDS[w] for w in text.split()]


def build_example(prompt, answer):
    ids = [BOS, USER, *encode(prompt), BOT]
    return ids + encode(answer) + [EOS], len(ids)


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    input_ids = torch.full((len(rows), longest), PAD)
    for i, (ids, _) in enumerate(rows):
        input_ids[i, : len(ids)] = torch.tensor(ids)
    labels = input_ids.clone()
    labels[input_ids == PAD] = -100
    for i, (_, start) in enumerate(rows):
        labels[i, :start] = -100
    attention_mask = (torch.arange(longest) < torch.tensor([[len(ids)] for ids, _ in rows])).long()
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def pretrain(model, cfg):
    rng = random.Random(cfg.seed)
    phrases = [encode(t) for pair in TALK for t in pair]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(cfg.pretrain_steps):
        rows = [sum((rng.choice(phrases) for _ in range(8)), [BOS])[:20] for _ in range(16)]
        ids = torch.tensor([r + [PAD] * (20 - len(r)) for r in rows])
        loss = model(input_ids=ids, labels=ids.masked_fill(ids == PAD, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"plain text: loss {loss.item():.3f}")


@torch.no_grad()
def answer(model, prompt):
    ids = torch.tensor([[BOS, USER, *encode(prompt), BOT]])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, pad_token_id=PAD, eos_token_id=EOS
    )
    names = {i: w for w, i in WORDS.items()} | {EOS: "<end>", PAD: "<pad>", USER: "<user>", BOT: "<bot>", BOS: "<s>"}
    return " ".join(names[i] for i in out[0, ids.size(1):].tolist())


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    config = LlamaConfig(
        vocab_size=len(WORDS) + 5, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config)
    pretrain(model, cfg)
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM, r=cfg.lora_r, lora_alpha=cfg.lora_alpha, lora_dropout=0.05,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], modules_to_save=["embed_tokens", "lm_head"],
    )
    model = get_peft_model(model, lora)
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    data = [build_example(p, a) for p, a in TALK * 24]
    loader = DataLoader(data, batch_size=cfg.batch_size, shuffle=True, collate_fn=collate)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 4, cfg.epochs * len(loader))
    for epoch in range(cfg.epochs):
        model.train()
        total = 0.0
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    model.eval()
    for prompt, _ in TALK[:4]:
        print(f"{prompt} -> {answer(model, prompt)}")


if __name__ == "__main__":
    main()
