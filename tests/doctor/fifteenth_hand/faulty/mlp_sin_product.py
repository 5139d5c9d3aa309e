def test_torch():
    import torch
    import torch.nn as nn
    from torch.utils import data
    from torch.utils.data import dataloader

    torch.manual_seed(0)
    samples = torch.randn(20000, 2)
    y = torch.sin(samples[:, 0] * samples[:, 1]).unsqueeze(1)
    print(y.shape)
    table = torch.cat([samples, y], dim=1)
    train_set, val_set = data.random_split(table, [18000, 2000])

    model = nn.Sequential(
        nn.Linear(2, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 1)
    )

    for p in model.parameters():
        print(tuple(p.shape), p.requires_grad)

    criterion = torch.nn.L1Loss()
    opt = torch.optim.Adam(model.parameters(), 0.001)

    dl = dataloader.DataLoader(train_set, batch_size=100, shuffle=True)
    val_dl = dataloader.DataLoader(val_set, batch_size=500)
    for epoch in range(8):
        model.train()
        epoch_loss = 0.0
        for d in dl:
            pred = model(d[:, :2])
            loss = criterion(pred, d[:, 2])
            opt.zero_grad()
            loss.backward()
            opt.step()
            epoch_loss += loss.item()
        model.eval()
        off = 0.0
        with torch.no_grad():
            for d in val_dl:
                off += (model(d[:, :2]).squeeze(1) - d[:, 2]).abs().sum().item()
        print("epoch:[{}], loss: {:.4f}, validation error: {:.4f}".format(epoch, epoch_loss / len(dl), off / len(val_set)))


if __name__ == "__main__":
    test_torch()
