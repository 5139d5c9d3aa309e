from dataclasses import dataclass


@dataclass
class Config:
    num_classes: int = 8
    epochs: int = 10
    warmup_epochs: int = 1
    batch_size: int = 32
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    label_smoothing: float = 0.05
    dropout: float = 0.2
    noise: float = 2.0
    seed: int = 3
