"""Instruction-tune a small causal LM with low-rank adapters and save only the adapter."""
import copy
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
VOCAB, LENGTH = 40, 16


def counting_rows(n, stride, seed):
    start = torch.randint(0, VOCAB, (n, 1), generator=torch.Generator().manual_seed(seed))
    return (start + stride * torch.arange(LENGTH)) % VOCAB


class CausalLM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.up_proj, self.down_proj = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm, self.lm_head = nn.LayerNorm(d), nn.Linear(d, VOCAB)

    def forward(self, ids):
        h, _ = self.gru(self.embed_tokens(ids))
        h = h + self.down_proj(torch.relu(self.up_proj(h)))
        return self.lm_head(self.norm(h))

    def loss(self, ids):
        return nn.functional.cross_entropy(self(ids)[:, 2:-1].flatten(0, 1), ids[:, 3:].flatten())


class LoraLinear(nn.Module):
    def __init__(self, base, r, alpha, adapter_name):
        super().__init__()
        self.base_layer, self.scaling, self.adapter_name = base, alpha / r, adapter_name
        self.lora_A = nn.ModuleDict({adapter_name: nn.Linear(base.in_features, r, bias=False)})
        self.lora_B = nn.ModuleDict({adapter_name: nn.Linear(r, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B[adapter_name].weight)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B[self.adapter_name](self.lora_A[self.adapter_name](x)) * self.scaling


def get_lora_model(model, r=8, alpha=16, targets=("up_proj", "down_proj", "lm_head"), adapter_name="default"):
    model.requires_grad_(False)
    for name in targets:
        setattr(model, name, LoraLinear(getattr(model, name), r, alpha, adapter_name))
    return model


def get_lora_state_dict(model, state_dict=None, adapter_name="default"):
    state_dict = model.state_dict() if state_dict is None else state_dict
    picked = {k: v for k, v in state_dict.items() if "lora_" in k and adapter_name in k}
    return {k.replace(f".{adapter_name}", ""): v for k, v in picked.items()}


def save_adapter(model, output_dir):
    torch.save(get_lora_state_dict(model), os.path.join(output_dir, "adapter_model.bin"))


def load_adapter(model, output_dir, adapter_name="default"):
    saved = torch.load(os.path.join(output_dir, "adapter_model.bin"))
    saved = {k.replace(".weight", f".{adapter_name}.weight"): v for k, v in saved.items()}
    model.load_state_dict(saved, strict=False)
    return model


def fit(model, rows, epochs, lr):
    loader = DataLoader(TensorDataset(rows), batch_size=32, shuffle=True)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for epoch in range(epochs):
        model.train()
        for (ids,) in loader:
            loss = model.loss(ids)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"  epoch {epoch} loss {loss.item():.4f}")


@torch.no_grad()
def evaluate(model, rows):
    model.eval()
    return "loss %.3f" % model.loss(rows).item()


output_dir = tempfile.mkdtemp()
base_model = CausalLM()
print("pretraining")
fit(base_model, counting_rows(640, 1, 0), epochs=6, lr=3e-3)
test_rows = counting_rows(200, 3, 3)
print("base model on the new task:", evaluate(base_model, test_rows))

model = get_lora_model(copy.deepcopy(base_model))
old_state_dict = model.state_dict
model.state_dict = (
    lambda self, *_, **__: get_lora_state_dict(self, old_state_dict())
).__get__(model, type(model))
print("fine-tuning")
fit(model, counting_rows(1280, 3, 1), epochs=8, lr=5e-3)
print("after training:", evaluate(model, test_rows))
save_adapter(model, output_dir)

model = load_adapter(get_lora_model(copy.deepcopy(base_model)), output_dir)
print("base model + saved adapter:", evaluate(model, test_rows), "file of", os.path.getsize(os.path.join(output_dir, "adapter_model.bin")), "bytes")
