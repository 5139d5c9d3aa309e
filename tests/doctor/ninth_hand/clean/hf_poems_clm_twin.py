"""Trains a GPT-2 from a config on short poems, then lets it write."""
import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    default_data_collator, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed,
)

set_seed(31)
random.seed(31)
NOUNS, VERBS = "moon river crow lamp field stone snow".split(), "sleeps falls sings burns waits".split()


def poem():
    lines = [f"the {random.choice(NOUNS)} {random.choice(VERBS)} ;" for _ in range(random.randint(1, 4))]
    return " ".join(lines)


words = ["<unk>", "<pad>", "<s>", "</s>", "the", ";", *NOUNS, *VERBS]
core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>")

unique = sorted({poem() for _ in range(1200)})
random.shuffle(unique)
poems = Dataset.from_dict({"text": unique[:640]})
tokenized = poems.map(lambda row: tokenizer(row["text"], truncation=True, max_length=32), remove_columns=["text"])


def group(rows):
    ids = sum(rows["input_ids"], [])
    blocks = [ids[i : i + 24] for i in range(0, len(ids) - 23, 24)]
    return {"input_ids": blocks, "labels": [list(block) for block in blocks]}


packed = tokenized.map(group, batched=True, batch_size=1000, remove_columns=tokenized.column_names)
parts = packed.train_test_split(test_size=32, seed=0)

model = GPT2LMHeadModel(GPT2Config(
    vocab_size=len(words), n_positions=48, n_embd=32, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=3, pad_token_id=tokenizer.pad_token_id
))
collator = default_data_collator
args = TrainingArguments(
    "poems", per_device_train_batch_size=16, num_train_epochs=2, learning_rate=3e-3, lr_scheduler_type="cosine", eval_strategy="epoch",
    save_strategy="no", logging_steps=20, report_to=[], disable_tqdm=True, use_cpu=True,
)
trainer = Trainer(model=model, args=args, train_dataset=parts["train"], eval_dataset=parts["test"], data_collator=collator)
trainer.train()

starts = ["the moon", "the river falls ; the"]
model.eval()
for start in starts:
    batch = tokenizer(start, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False)
    out = model.generate(**batch, max_new_tokens=10, do_sample=False)
    print(tokenizer.decode(out[0], skip_special_tokens=True))
