"""Minimal SFT trainer: one optimizer step per global batch, split into mini-batches."""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass
class SFTConfig:
    epochs: int = 3
    train_batch_per_replica: int = 32
    mini_batch: int = 8
    optm_lr: float = 3e-3
    optm_warmup_steps: int = 4
    optm_grad_norm_clip: float = 1.0
    seed: int = 0


class SFTDataset(Dataset):
    """'sort these digits' instructions: prompt tokens, then the answer."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        digits = torch.randint(0, 10, (n, 4), generator=g) + 3
        answer = digits.sort(dim=1).values
        bos, sep = torch.full((n, 1), 1), torch.full((n, 1), 2)
        self.input_ids = torch.cat([bos, digits, sep, answer], dim=1)
        self.labels = self.input_ids.clone()
        self.labels[:, :6] = -100

    def __len__(self):
        return len(self.input_ids)

    def __getitem__(self, i):
        return {"input_ids": self.input_ids[i], "labels": self.labels[i]}


def build_lr_schedulers(optimizer, config, total_steps):
    def linear_warmup_cosine_decay(step):
        if step < config.optm_warmup_steps:
            return (step + 1) / config.optm_warmup_steps
        progress = (step - config.optm_warmup_steps) / max(1, total_steps - config.optm_warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, linear_warmup_cosine_decay)


class SFTTrainer:
    def __init__(self, config):
        self.config = config
        torch.manual_seed(config.seed)
        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=16, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32,
            bos_token_id=1, eos_token_id=None, pad_token_id=None))
        self.train_loader = DataLoader(SFTDataset(1024, 11), batch_size=config.train_batch_per_replica,
                                       shuffle=True, drop_last=True)
        self.val_loader = DataLoader(SFTDataset(256, 12), batch_size=64)
        self.total_steps = config.epochs * len(self.train_loader)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.optm_lr, weight_decay=0.01)
        self.lr_schedulers = build_lr_schedulers(self.optimizer, config, self.total_steps)

    def validate(self):
        self.model.eval()
        correct = total = 0
        loss_sum = 0.0
        with torch.no_grad():
            for batch in self.val_loader:
                logits = self.model(input_ids=batch["input_ids"]).logits[:, 5:-1]
                target = batch["labels"][:, 6:]
                loss_sum += F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").item()
                correct += (logits.argmax(-1) == target).sum().item()
                total += target.numel()
        return loss_sum / total, correct / total

    def main_loop(self):
        step = 0
        for epoch in range(self.config.epochs):
            self.model.train()
            for global_batch in self.train_loader:
                acc_loss = 0.0
                self.optimizer.zero_grad()
                n = len(global_batch["input_ids"])
                for i in range(0, n, self.config.mini_batch):
                    batch = {k: v[i:i + self.config.mini_batch] for k, v in global_batch.items()}
                    loss = self.model(**batch).loss
                    loss = loss * len(batch["input_ids"]) / n
                    loss.backward()
                    acc_loss += loss.item()
                    self.lr_schedulers.step()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optm_grad_norm_clip)
                self.optimizer.step()
                step += 1
                if step % 16 == 0:
                    print(f"Step: {step}/{self.total_steps}, Loss: {acc_loss:.4f}, "
                          f"LR: {self.lr_schedulers.get_last_lr()[0]:.6f}")
            val_loss, val_acc = self.validate()
            print(f"epoch {epoch}: validation loss {val_loss:.4f}, token accuracy {val_acc:.4f}")


if __name__ == "__main__":
    SFTTrainer(SFTConfig()).main_loop()
