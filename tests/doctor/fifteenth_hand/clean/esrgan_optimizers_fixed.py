import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

config = {"EPOCHS": 5, "BATCH": 32, "LR": 1e-3, "PIXEL_WEIGHT": 1.0, "ADVERSARIAL_WEIGHT": 0.01, "SEED": 0}


def load_dataset():
    def make(n, seed):
        g = torch.Generator().manual_seed(seed)
        gt = torch.randn(n, 1, 16, 16, generator=g)
        gt = nn.functional.avg_pool2d(nn.functional.pad(gt, (1, 1, 1, 1), mode="reflect"), 3, 1) * 3
        gt = torch.tanh(2 * gt)
        return TensorDataset(gt, nn.functional.avg_pool2d(gt, 2))
    train = DataLoader(make(640, 1), batch_size=config["BATCH"], shuffle=True, drop_last=True)
    return train, DataLoader(make(128, 2), batch_size=64)


def build_model():
    g_model = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(24, 24, 3, padding=1), nn.LeakyReLU(0.2),
                            nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2), nn.Tanh())
    d_model = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, stride=2, padding=1),
                            nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * 16, 1))
    return g_model, d_model


def define_optimizer(g_model, d_model):
    g_optimizer = optim.Adam(g_model.parameters(), config["LR"], (0.5, 0.99))
    d_optimizer = optim.Adam(d_model.parameters(), config["LR"] * 0.5, (0.5, 0.99))
    return g_optimizer, d_optimizer


def train(g_model, d_model, train_data, pixel_criterion, adversarial_criterion, g_optimizer, d_optimizer, epoch):
    g_model.train()
    d_model.train()
    sums = {"pixel": 0.0, "adversarial": 0.0, "d_loss": 0.0, "d_real": 0.0, "d_fake": 0.0}
    for gt, lr in train_data:
        real_label, fake_label = torch.ones(len(gt), 1), torch.zeros(len(gt), 1)

        for d_parameters in d_model.parameters():
            d_parameters.requires_grad = False
        g_optimizer.zero_grad(set_to_none=True)
        sr = g_model(lr)
        pixel_loss = config["PIXEL_WEIGHT"] * pixel_criterion(sr, gt)
        adversarial_loss = config["ADVERSARIAL_WEIGHT"] * adversarial_criterion(d_model(sr), real_label)
        (pixel_loss + adversarial_loss).backward()
        g_optimizer.step()

        for d_parameters in d_model.parameters():
            d_parameters.requires_grad = True
        d_optimizer.zero_grad(set_to_none=True)
        gt_output, sr_output = d_model(gt), d_model(sr.detach())
        d_loss = adversarial_criterion(gt_output, real_label) + adversarial_criterion(sr_output, fake_label)
        d_loss.backward()
        d_optimizer.step()

        values = (pixel_loss, adversarial_loss, d_loss, gt_output.sigmoid().mean(), sr_output.sigmoid().mean())
        for name, value in zip(sums, values):
            sums[name] += value.item() / len(train_data)
    print(f"Epoch {epoch + 1}: " + " ".join(f"{k} {v:.4f}" for k, v in sums.items()))


@torch.no_grad()
def test(g_model, loader):
    g_model.eval()
    mse = sum(((g_model(lr) - gt) ** 2).mean(dim=(1, 2, 3)).sum().item() for gt, lr in loader) / len(loader.dataset)
    return 10 * torch.log10(torch.tensor(4.0 / mse)).item()


def main():
    torch.manual_seed(config["SEED"])
    train_data, test_data = load_dataset()
    g_model, d_model = build_model()
    g_optimizer, d_optimizer = define_optimizer(g_model, d_model)
    g_scheduler = optim.lr_scheduler.MultiStepLR(g_optimizer, [3, 4], 0.5)
    d_scheduler = optim.lr_scheduler.MultiStepLR(d_optimizer, [3, 4], 0.5)
    start = [p.detach().clone() for p in d_model.parameters()]
    for epoch in range(config["EPOCHS"]):
        train(g_model,
              d_model,
              train_data,
              nn.L1Loss(),
              nn.BCEWithLogitsLoss(),
              g_optimizer,
              d_optimizer,
              epoch)
        g_scheduler.step()
        d_scheduler.step()
        print(f"  PSNR {test(g_model, test_data):.2f} dB")
    moved = sum((a - b).norm().item() for a, b in zip(start, d_model.parameters()))
    print(f"distance of the discriminator from its start: {moved:.3f}")


if __name__ == "__main__":
    main()
