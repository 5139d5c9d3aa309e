"""Python imports this before the script: start the observer, and leave the interpreter as it would have been."""

from __future__ import annotations

import importlib
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
_mine = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")  # the environment's own, which this one hides
except ModuleNotFoundError:
    if _mine is not None:
        sys.modules["sitecustomize"] = _mine

if "SNUGFIT_DOCTOR_FOLDER" in os.environ:
    try:
        from snugfit.doctor.observe.child import start
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "snugfit":
            raise
        print("snugfit doctor: this Python has no snugfit, so it is not observed", file=sys.stderr)
    else:
        start()
