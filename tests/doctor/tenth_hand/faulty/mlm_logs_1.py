"""Pretrain a tiny BERT on machine logs by masked words, with the Trainer."""
import math
import random
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

SERVICES = [f"svc{i}" for i in range(8)]
EVENTS = [f"event{i}" for i in range(24)]
CODES = [f"c{i}" for i in range(60)]


def lines(count, seed):
    """Each service has its own events, and each event its codes: there is something to be guessed."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        words = []
        for _ in range(5):
            service = rng.randrange(8)
            event = service * 3 + rng.randrange(3)
            words += [SERVICES[service], EVENTS[event], CODES[(event * 5 + rng.randrange(4)) % 60]]
        out.append(" ".join(words))
    return Dataset.from_dict({"text": out})


def build_tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab = {word: number for number, word in enumerate(special + SERVICES + EVENTS + CODES)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


set_seed(7)
tokenizer = build_tokenizer()
train_dataset = lines(640, 1).map(lambda b: tokenizer(b["text"]), batched=True, remove_columns=["text"])
eval_dataset = lines(128, 2).map(lambda b: tokenizer(b["text"]), batched=True, remove_columns=["text"])

config = BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=32,
)
model = BertForMaskedLM(config)
data_collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=False)
training_args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=2,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    learning_rate=3e-3,
    warmup_steps=6,
    weight_decay=0.01,
    logging_steps=10,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=training_args,
    data_collator=data_collator,
    train_dataset=train_dataset,
    eval_dataset=eval_dataset,
)
trainer.train()
print(f"Perplexity: {math.exp(trainer.evaluate()['eval_loss']):.3f}")
