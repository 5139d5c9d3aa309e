"""Run a script as `python -m tests.doctor.ending RESULT SCRIPT [ARGUMENTS]`, and write what came of it: each loss, weight and random state.

Alone and under observation the results of a script that computes the same each time are equal bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any

PLAIN = {"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""The environment in which torch computes the same each time."""


def digest(values: Any) -> str:
    """Return the same for the same bits of tensors, in containers too, and numbers."""
    import torch

    if isinstance(values, torch.Tensor):
        dense = values.detach().to_dense().cpu().contiguous().reshape(-1)
        return hashlib.blake2b(dense.view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
    if isinstance(values, dict):
        values = [each for pair in sorted(values.items(), key=lambda pair: str(pair[0])) for each in pair]
    if isinstance(values, list | tuple):
        return hashlib.blake2b(" ".join(map(digest, values)).encode(), digest_size=8).hexdigest()
    return repr(values)


def main() -> None:
    """Run the script and write the result, however it ends."""
    import numpy as np
    import torch

    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    result, script = Path(sys.argv[1]).resolve(), sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)
    losses: list[str] = []
    optimizers: list[torch.optim.Optimizer] = []
    backward, initialise = torch.autograd.backward, torch.optim.Optimizer.__init__

    def recorded(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        losses.append(digest(tensors if isinstance(tensors, torch.Tensor) else list(tensors)))
        return backward(tensors, *args, **kwargs)

    def initialised(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        optimizers.append(optimizer)
        initialise(optimizer, *args, **kwargs)

    torch.autograd.backward = recorded
    torch.optim.Optimizer.__init__ = initialised  # type: ignore[method-assign]
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    ended = ""
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as failure:
        ended = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        weights = [
            parameter for each in optimizers for group in each.param_groups for parameter in group["params"]
        ]
        ending = {
            "ended": ended,
            "losses": losses,
            "weights": digest(weights),
            "states": [digest(list(each.state.values())) for each in optimizers],
            "random": [digest(torch.get_rng_state()), random.random(), float(np.random.random())],
        }
        result.with_name(f"{result.stem}-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(ending))


if __name__ == "__main__":
    main()
