"""A small causal model writes the steps of recipes: HF Trainer with a smoothed loss, then generation in batches."""
import random
import tempfile

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed

FOODS = [f"food{i}" for i in range(16)]
VERBS = [f"verb{i}" for i in range(16)]
DISHES = [f"dish{i}" for i in range(16)]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", ":", "extra"]


def recipe(rng):
    foods, dish = rng.sample(range(16), rng.randint(3, 5)), rng.randrange(16)
    prompt = "<s> " + "extra " * rng.randint(0, 5) + " ".join(FOODS[f] for f in foods) + f" : {DISHES[dish]}"
    answer = f"{VERBS[dish]} {FOODS[(dish + 3) % 16]}"
    return prompt, answer


def build_tokenizer():
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + FOODS + VERBS + DISHES)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


class Recipes(Dataset):
    def __init__(self, count, seed, tokenizer):
        rng = random.Random(seed)
        self.pairs = [recipe(rng) for _ in range(count)]
        self.rows = [tokenizer(f"{p} {a} </s>")["input_ids"] for p, a in self.pairs]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


class Collator:
    def __init__(self, pad):
        self.pad = pad

    def __call__(self, rows):
        width = max(len(r["input_ids"]) for r in rows)
        ids = torch.full((len(rows), width), self.pad)
        for i, r in enumerate(rows):
            ids[i, : len(r["input_ids"])] = torch.tensor(r["input_ids"])
        mask = (ids != self.pad).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class SmoothedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.02, reduction="sum"
        )
        count = (labels[:, 1:] != -100).sum() if num_items_in_batch is None else num_items_in_batch
        loss = loss / count
        return (loss, outputs) if return_outputs else loss


@torch.no_grad()
def exact_match(model, tokenizer, pairs):
    model.eval()
    hits = 0
    for pair in pairs:
        chunk = [pair]
        batch = tokenizer([p for p, _ in chunk], return_tensors="pt", padding=True)
        out = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=5, do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(out[:, batch["input_ids"].size(1) :], skip_special_tokens=True)
        hits += sum(text.strip() == answer for text, (_, answer) in zip(texts, chunk))
    return hits / len(pairs)


def main():
    set_seed(64)
    tokenizer = build_tokenizer()
    train_set, val_set = Recipes(800, 1, tokenizer), Recipes(64, 2, tokenizer)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=48, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=3,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        warmup_steps=10,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=15,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SmoothedTrainer(
        model=model, args=args, train_dataset=train_set, eval_dataset=val_set, data_collator=Collator(tokenizer.pad_token_id)
    )
    trainer.train()
    print(f"exact match {exact_match(model, tokenizer, val_set.pairs):.3f}")


if __name__ == "__main__":
    main()
