"""Do the claims hold? 8B and 70B models in the memory that is said, beside those whose published figures they answer."""

from __future__ import annotations

MODULES = ("streamed", "qlora", "control")
