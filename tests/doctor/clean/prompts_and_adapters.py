"""A small language model with adapters that learn, under a trainer that is told its columns, and prompts padded on the left."""

from __future__ import annotations

import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        weight, labels = inputs.pop("text_weight"), inputs.pop("labels")
        outputs = model(**inputs)
        scores = outputs.logits[:, :-1].flatten(0, 1)
        losses = nn.functional.cross_entropy(scores, labels[:, 1:].flatten(), reduction="none")
        loss = (weight[:, None] * losses.view(len(weight), -1)).mean()
        return (loss, outputs) if return_outputs else loss


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=48,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
adapted = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
texts = torch.randint(3, 48, (32, 10))
columns = {"input_ids": texts.tolist(), "labels": texts.tolist(), "text_weight": torch.rand(32).tolist()}
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    remove_unused_columns=False,
    report_to=[],
    use_cpu=True,
)
Weighted(adapted, arguments, train_dataset=Dataset.from_dict(columns)).train()
adapted.eval()
lengths = torch.tensor([3, 6, 5, 6])
mask = (torch.arange(6) >= 6 - lengths[:, None]).long()
print(
    adapted.generate(input_ids=texts[:4, :6] * mask, attention_mask=mask, max_new_tokens=4, do_sample=False)
)
