"""This process and this machine; nothing here knows of training."""
