"""Settings that libraries read when they are imported, before tests or a mutation's process import them: no network, no telemetry."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "MKL_CBWR", "AUTO"
)  # as runs have it: what multiplies first, a test or a run, is not known here

# tests have a cache of their own for what is ours; what other libraries keep there stays theirs
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
for name, folder in (("MPLCONFIGDIR", "matplotlib"), ("HF_HOME", "huggingface"), ("TORCH_HOME", "torch")):
    os.environ.setdefault(name, str(_CACHE / folder))
