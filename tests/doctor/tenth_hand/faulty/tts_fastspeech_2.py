"""Phonemes to mel spectrograms in FastSpeech's manner: encoder, durations, length regulator, decoder."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PHONES, MELS, PAD = 24, 16, 0


def corpus(count, seed):
    gen = torch.Generator().manual_seed(seed)
    voice = torch.Generator().manual_seed(5)
    power = torch.rand(PHONES, MELS, generator=voice).pow(3) * 4
    length = torch.randint(1, 5, (PHONES,), generator=voice)
    rows = []
    for _ in range(count):
        n = torch.randint(5, 18, (1,), generator=gen).item()
        phones = torch.randint(1, PHONES, (n,), generator=gen)
        durations = (length[phones] + torch.randint(0, 2, (n,), generator=gen)).clamp(min=1)
        energy = power[phones].repeat_interleave(durations, dim=0)
        energy = energy * (0.9 + 0.2 * torch.rand(energy.shape, generator=gen))
        energy[energy < 0.02] = 0.0  # the gate of the microphone
        mel = torch.log(energy)
        rows.append((phones, durations, mel))
    return rows


def collate(rows):
    phones = pad_sequence([r[0] for r in rows], batch_first=True, padding_value=PAD)
    durations = pad_sequence([r[1] for r in rows], batch_first=True)
    mels = pad_sequence([r[2] for r in rows], batch_first=True)
    mel_lengths = torch.tensor([len(r[2]) for r in rows])
    return phones, durations, mels, mel_lengths


class FastSpeech(nn.Module):
    def __init__(self, dim=48, max_len=128):
        super().__init__()
        self.embed = nn.Embedding(PHONES, dim, padding_idx=PAD)
        self.pos = nn.Parameter(0.02 * torch.randn(max_len, dim))
        layer = lambda: nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer(), 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerEncoder(layer(), 1, enable_nested_tensor=False)
        self.duration = nn.Linear(dim, 1)
        self.mel = nn.Linear(dim, MELS)

    def forward(self, phones, durations, mel_mask):
        pad = phones == PAD
        h = self.embed(phones) + self.pos[: phones.size(1)]
        h = self.encoder(h, src_key_padding_mask=pad)
        log_durations = self.duration(h).squeeze(-1)
        frames = pad_sequence([row.repeat_interleave(d, dim=0) for row, d in zip(h, durations)], batch_first=True)
        frames = frames + self.pos[: frames.size(1)]
        frames = self.decoder(frames, src_key_padding_mask=~mel_mask)
        return self.mel(frames), log_durations


def losses(model, batch):
    phones, durations, mels, mel_lengths = batch
    mel_mask = torch.arange(mels.size(1))[None] < mel_lengths[:, None]
    predicted, log_durations = model(phones, durations, mel_mask)
    mel_loss = (predicted - mels).abs()[mel_mask].mean()
    real = phones != PAD
    duration_loss = (log_durations[real] - durations[real].float().log()).pow(2).mean()
    return mel_loss, duration_loss, int(mel_mask.sum())


def main():
    torch.manual_seed(6)
    train_loader = DataLoader(corpus(288, 1), batch_size=24, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(corpus(48, 2), batch_size=24, collate_fn=collate)
    model = FastSpeech()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)
    for epoch in range(5):
        model.train()
        for batch in train_loader:
            mel_loss, duration_loss, _ = losses(model, batch)
            loss = mel_loss + 0.5 * duration_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
        model.eval()
        with torch.no_grad():
            total, frames = 0.0, 0
            for batch in val_loader:
                mel_loss, _, count = losses(model, batch)
                total, frames = total + mel_loss.item() * count, frames + count
        print(f"epoch {epoch} mel {total / frames:.4f} duration {duration_loss.item():.4f}")


if __name__ == "__main__":
    main()
