"""Is the planner right on this device? What it says of bytes, seconds and kernels, beside runs; its choices under budgets, trained."""

from __future__ import annotations

MODULES = ("predictions", "attention_kernels", "cases", "budgets", "in_situ", "allocator_settings")
