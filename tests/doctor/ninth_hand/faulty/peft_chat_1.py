import random

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

random.seed(0)
torch.manual_seed(0)
PAD, BOS, SEP, EOS = 0, 1, 2, 3
MAX_LEN = 24


def make_example():
    """The instruction is two runs of letters; the answer is the same backwards."""
    prompt = []
    for n in (random.randint(3, 5), random.randint(3, 5)):
        first = random.randint(4, 30 - n)
        prompt += range(first, first + n)
    return prompt


def encode(prompt):
    answer = prompt[::-1]
    prompt_ids = [BOS] + prompt + [SEP]
    input_ids = (prompt_ids + answer + [EOS])[:MAX_LEN]
    labels = list(input_ids)
    labels[: len(prompt_ids)] = [-100] * len(prompt_ids)
    return {"input_ids": input_ids, "labels": labels}


def collate(batch):
    longest = max(len(each["input_ids"]) for each in batch)
    ids, labels, mask = [], [], []
    for each in batch:
        gap = longest - len(each["input_ids"])
        ids.append(each["input_ids"] + [PAD] * gap)
        labels.append(each["labels"] + [-100] * gap)
        mask.append([1] * len(each["input_ids"]) + [0] * gap)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels), "attention_mask": torch.tensor(mask)}


config = GPT2Config(vocab_size=32, n_positions=64, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)


def pretrain(model, steps=80):
    """The base knows letters in their order."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        runs = torch.randint(4, 16, (32, 1)) + torch.arange(14)
        loss = model(input_ids=runs, labels=runs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"base {loss.item():.3f}")
    return model


model = pretrain(GPT2LMHeadModel(config))
lora = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_proj", "c_fc"], task_type="CAUSAL_LM", lora_dropout=0.0, fan_in_fan_out=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)  # <- here
model = get_peft_model(model, lora)  # <- here
model.print_trainable_parameters()

examples = [list(each) for each in sorted({tuple(make_example()) for _ in range(1000)})]
random.shuffle(examples)
train, valid = [encode(each) for each in examples[:640]], [encode(each) for each in examples[640:736]]
loader = DataLoader(train, batch_size=32, shuffle=True, collate_fn=collate)
valid_loader = DataLoader(valid, batch_size=32, collate_fn=collate)
EPOCHS = 3
scheduler = get_linear_schedule_with_warmup(optimizer, 6, EPOCHS * len(loader))

for epoch in range(EPOCHS):
    model.train()
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        val = [model(**batch).loss.item() for batch in valid_loader]
    print(f"epoch {epoch}: train {loss.item():.3f} valid {sum(val) / len(val):.3f}")
model.save_pretrained("adapter")
