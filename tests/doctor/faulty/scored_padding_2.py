"""A causal language model by a trainer, whose labels of padding count."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCAB, EOS, PAD = 400, 1, 0


class Data(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            size = int(torch.randint(8, 24, (1,), generator=g))
            s = int(torch.randint(3, VOCAB, (1,), generator=g))
            d = int(torch.randint(1, 30, (1,), generator=g))
            self.rows.append([3 + (s + d * i) % (VOCAB - 3) for i in range(size)] + [EOS])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": list(self.rows[i])}


def collate(fs):
    L = max(len(f["input_ids"]) for f in fs)
    ids = torch.tensor([f["input_ids"] + [PAD] * (L - len(f["input_ids"])) for f in fs])
    mask = (ids != PAD).long()
    labels = ids.clone()  # <- here
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=VOCAB,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=EOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
)
args = TrainingArguments(
    output_dir="out",
    num_train_epochs=2,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    warmup_steps=5,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    seed=0,
    logging_steps=20,
)
trainer = Trainer(
    model=model, args=args, data_collator=collate, train_dataset=Data(320, 1), eval_dataset=Data(64, 2)
)
trainer.train()
print(trainer.evaluate())
