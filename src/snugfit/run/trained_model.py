"""A trained model, loaded with what its task needs to use it: of a run, a folder, or the registry."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from snugfit.run.training.result import TrainedModel

if TYPE_CHECKING:
    from torch import nn

    from snugfit.core.loss_terms import Loss
    from snugfit.data.loader import Collate
    from snugfit.deliver.predictor import Predictor
    from snugfit.step.step import Forward

_BEST = "best"


def load(
    source: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    collate: Collate | None = None,
    forward: Forward | None = None,
    loss: Loss | None = None,
    device: str = "auto",
    uri: str | None = None,
    allow_code: bool = False,
) -> TrainedModel:
    """Load a trained model: of a run's folder its best, of a folder such as `best/`, or `models:/NAME@champion` of the registry.

    Args:
        model: takes the weights, where they are of a module that was made in Python and no function makes it again. It has the
            architecture that was delivered: without adapters where these were merged.
        collate, forward: as `sf.train` was given them, where it was: without them the model alone is there, and predicts nothing.
        loss: of one's own, as `sf.train` was given it: by it `.evaluate(rows)` scores.
        uri: the registry's tracker; MLFLOW_TRACKING_URI by default, else the database beside the runs.
        allow_code: consent to run what the model names as `package.module:function`.
    Raises:
        CodeRefused: it names code, without consent.
        ModelError: it is damaged, or cannot be made again.
        RunFolderError, TrackingError: there is none.
    """
    from snugfit.deliver.model_registry import resolve_model
    from snugfit.deliver.predictor import load_predictor
    from snugfit.models.bundle import OWN_FUNCTIONS

    folder = resolve_model(source, uri=uri)
    predictor = load_predictor(folder, device, model=model, allow_code=allow_code)
    of_run = folder.name == _BEST and (folder.parent / "events.jsonl").exists()
    given = {"collate": collate, "forward": forward}
    lacking = tuple(name for name in predictor.meta.get(OWN_FUNCTIONS, ()) if given[name] is None)
    return TrainedModel(
        with_own(predictor, collate, forward, loss), folder.parent if of_run else None, lacking
    )


def with_own(
    predictor: Predictor, collate: Collate | None, forward: Forward | None, loss: str | Loss | None = None
) -> Predictor:
    """Return a predictor that makes batches, calls the model and scores it in the user's own way, where there is one."""
    if loss is not None and predictor.use is not None:
        predictor = predictor.by_loss(loss)
    if collate is None and forward is None:
        return predictor
    if predictor.inference.run is not None:  # answers are generated, of other batches than those of training
        return predictor
    if collate is not None:
        predictor = dataclasses.replace(
            predictor, use=dataclasses.replace(predictor.inference, collate=collate)
        )
    return predictor if forward is None else dataclasses.replace(predictor, forward=forward)
