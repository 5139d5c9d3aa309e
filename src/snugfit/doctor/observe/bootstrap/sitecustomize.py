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

        start()
    except Exception as failure:  # noqa: BLE001  the script runs, whatever happens to its observer
        print(f"snugfit doctor: {sys.executable} is not observed: {failure}", file=sys.stderr)
        with open(os.path.join(os.environ["SNUGFIT_DOCTOR_FOLDER"], f"{os.getpid()}.blind"), "w") as note:
            note.write(f"a process of {sys.executable}: {failure}")
