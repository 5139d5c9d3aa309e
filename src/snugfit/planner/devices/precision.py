"""The precision of a run that names none: that of the 16-bit type which its device has units for."""

from __future__ import annotations

from snugfit.core.technique import Fidelity, Technique
from snugfit.planner.devices.device import Device
from snugfit.techniques import discover

_FIRST_WITH_UNITS = (7, 0)
"""The compute capability from which on a GPU multiplies matrices in 16 bit faster than in 32."""


def half_of(device: Device) -> str | None:
    """Return the 16-bit type that a device has matrix units for, bfloat16 before float16, which needs a loss scale; None without."""
    if device.capability is None or device.capability < _FIRST_WITH_UNITS:
        return None
    return next((name for name in ("bfloat16", "float16") if name in device.flops), None)


def usual_level(device: Device) -> Fidelity:
    """Return the coarsest level that a plan for the device may choose where nobody says."""
    return Fidelity.FULL if half_of(device) is None else Fidelity.MIXED


def usual_precision(device: Device) -> Technique | None:
    """Return what a run on the device computes in where neither a recipe nor a plan says: mixed precision, or None for float32."""
    half = half_of(device)
    mixed = (
        technique()
        for technique in discover().values()
        if technique.card.precision and technique.card.fidelity is Fidelity.MIXED
    )
    return next((each for each in mixed if each.card.needs == half), None)
