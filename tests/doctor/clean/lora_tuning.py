"""Adapters of peft on a model of transformers, which alone import torch, by the Trainer with padding by its collator."""

from __future__ import annotations

from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, **{letter: 3 + place for place, letter in enumerate(ALPHABET)}}
backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
)
set_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
texts = [" ".join(ALPHABET[(7 * row + place) % 26] for place in range(4 + row % 7)) for row in range(40)]
rows = [tokenizer(f"<s> {text} </s>", return_token_type_ids=False) for text in texts]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    max_steps=6,
    logging_steps=2,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator).train()
