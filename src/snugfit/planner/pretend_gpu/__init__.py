"""A CUDA device that is not there, for fake tensors. README.md says which of torch's internals it relies on, and how it breaks."""
