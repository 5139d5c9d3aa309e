"""The process and the machine; nothing here knows of training."""
