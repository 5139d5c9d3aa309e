"""LoRA written out by hand. A small transformer learns to sort out one kind of notes, then is adapted to another kind."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(40)
VOCAB, SEQ, D = 40, 12, 32


class SelfAttention(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.h = heads
        self.q_proj = nn.Linear(d, d)
        self.k_proj = nn.Linear(d, d)
        self.v_proj = nn.Linear(d, d)
        self.o_proj = nn.Linear(d, d)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.h, C // self.h).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = SelfAttention(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class NoteClassifier(nn.Module):
    def __init__(self, n_layers=2, n_classes=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, D)
        self.pos = nn.Parameter(0.02 * torch.randn(SEQ, D))
        self.layers = nn.ModuleList(Layer(D) for _ in range(n_layers))
        self.norm = nn.LayerNorm(D)
        self.score = nn.Linear(D, n_classes)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.score(self.norm(x).mean(1))


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


def inject_lora(model, targets=("q_proj", "v_proj"), r=4):
    for param in model.parameters():
        param.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets:
                setattr(module, name, LoRALinear(child, r=r))
    model.score = nn.Linear(D, 4)
    return model


def notes(n, shift):
    """which quarter of the (shifted) vocabulary do most words come from?"""
    y = torch.randint(4, (n,))
    own = torch.randint(VOCAB // 4, (n, SEQ)) + (VOCAB // 4) * y[:, None]
    noise = torch.randint(VOCAB, (n, SEQ))
    ids = torch.where(torch.rand(n, SEQ) < 0.5, own, noise)
    return (ids + shift) % VOCAB, y


def fit(model, params, data, val, epochs, lr, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    x, y = data
    for ep in range(epochs):
        model.train()
        perm = torch.randperm(len(x))
        tot = 0.0
        for i in range(0, len(x), 50):
            b = perm[i:i + 50]
            loss = F.cross_entropy(model(x[b]), y[b])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            tot += loss.item() * len(b)
        model.eval()
        with torch.no_grad():
            acc = (model(val[0]).argmax(-1) == val[1]).float().mean()
        print(f"{tag} {ep} loss {tot / len(x):.3f} val acc {acc:.3f}")


if __name__ == "__main__":
    model = NoteClassifier()
    fit(model, model.parameters(), notes(1000, 0), notes(400, 0), 4, 3e-3, "base")

    model = inject_lora(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    n_train, n_all = sum(p.numel() for p in trainable), sum(p.numel() for p in model.parameters())
    print(f"trainable: {n_train:,} of {n_all:,} ({100 * n_train / n_all:.1f}%)")
    fit(model, trainable, notes(1000, 5), notes(400, 5), 8, 1e-2, "lora")
    lora_state = {k: v for k, v in model.state_dict().items() if "lora_" in k or k.startswith("score.")}
    torch.save(lora_state, "lora.pt")
