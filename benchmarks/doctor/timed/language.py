"""A causal language model of four layers in transformers' Trainer, with accumulation."""

from __future__ import annotations

import tempfile

import torch
from clock import Clock
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

clock = Clock()


class Ticking(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        clock.marks[:] = []
        clock.tick()

    def on_step_end(self, args, state, control, **kwargs):
        clock.tick()


torch.manual_seed(0)
config = GPT2Config(
    vocab_size=2000, n_positions=64, n_embd=256, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
)
tokens = torch.randint(1, 2000, (320, 64))
with tempfile.TemporaryDirectory() as output:
    arguments = TrainingArguments(
        output_dir=output,
        num_train_epochs=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows, callbacks=[Ticking()]).train()
clock.write()
