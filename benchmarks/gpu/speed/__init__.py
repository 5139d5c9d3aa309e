"""How fast is it? Tokens and updates a second, idle time and memory, beside a loop written by hand and beside other trainers."""

from __future__ import annotations

MODULES = ("language_models", "overhead")
