"""Checkpoints: what is saved, and what is read again."""
import torch


def save_checkpoint(path, model, optimizer, schedule, epoch):
    weights = {f"module.{name}": value for name, value in model.state_dict().items()}  # as on several devices
    torch.save(
        {"state_dict": weights, "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict(), "epoch": epoch},
        path,
    )


def load_checkpoint(path, model, optimizer, schedule):
    """Load all that was saved, and return the epoch to go on with."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    weights = {name.removeprefix("module."): value for name, value in checkpoint["state_dict"].items()}
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict(checkpoint["optimizer"])  # <- here
    return checkpoint["epoch"]
