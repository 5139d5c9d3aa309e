"""Models from transformers, timm, torchvision or a Python path, and bundles of trained ones."""
