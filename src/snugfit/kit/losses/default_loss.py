"""The loss of a model that is given without one: a model of transformers computes one of its own, which is taken."""

from __future__ import annotations

from typing import Any

from torch import nn

from snugfit.core.loss_terms import Loss

_NEXT_TOKEN = (
    "ForCausalLM",
    "LMHeadModel",
    "ForConditionalGeneration",
    "ModelWithLMHead",
    "DoubleHeadsModel",
    "ForCausalImageModeling",
    "GenerationDecoder",
    "Text2Text",
)
_DECODERS = "Bart Pegasus Blenderbot BlenderbotSmall Marian Mvp ProphetNet TrOCR Whisper CpmAnt"
_SAME_TOKEN = ("WithLMHeadModel", "XLNetLMHeadModel", *(f"{name}ForCausalLM" for name in _DECODERS.split()))
"""Ends of the class names of models that score each token on the label at its own place, though their names say that they write texts.

Decoders of models that read something else first, as of transformers 5.23, get labels that are shifted already.
"""
_CLASSIFIERS = "Classification"


def default_loss(model: nn.Module) -> str:
    """Return the name of the built-in loss that a model of transformers computes itself from labels; cross_entropy of any other.

    A causal language model scores each token on the next one, and a classifier goes by its `problem_type`, or is a regression where it has
    one output. A model within peft's or torch.compile's is the one that counts, and a class of one's own is of the kind that it derives from.
    Decoders of Bart's kin, such as MarianForCausalLM, leave it to the caller to shift the labels, and so does cross_entropy.
    """
    own = _within(model)
    config: Any = getattr(own, "config", None)
    kind = _kind_of(own)
    if not hasattr(config, "is_encoder_decoder"):  # none of transformers
        return "cross_entropy"
    if kind.endswith(_NEXT_TOKEN) and not kind.endswith(_SAME_TOKEN):
        return "cross_entropy" if config.is_encoder_decoder else "causal_lm"
    if not kind.endswith(_CLASSIFIERS) or kind.endswith("ForTokenClassification"):
        return "cross_entropy"
    problem = getattr(config, "problem_type", None)
    if problem == "multi_label_classification":
        return "binary_cross_entropy"
    single = problem is None and getattr(config, "num_labels", None) == 1
    return "mse" if single or problem == "regression" else "cross_entropy"


def loss_message(loss: str | Loss | None, model: nn.Module) -> str | None:
    """Return what there is to say of a loss that was chosen here, or that is named and not the model's own; None where nothing is."""
    own = default_loss(model)
    kind = _kind_of(_within(model))
    if loss is None:
        return None if own == "cross_entropy" else f"the loss is {own}, as {kind} computes it from labels"
    if loss != "cross_entropy" or own == "cross_entropy":
        return None
    unless = {
        "causal_lm": "unless the labels are the next tokens already",
        "mse": "unless the labels are classes",
        "binary_cross_entropy": "unless the labels of a row are probabilities that sum to 1",
    }[own]
    return f"the loss is cross_entropy, and {kind} computes {own} from labels: give loss {own}, {unless}"


def _kind_of(model: Any) -> str:
    """Return the name of the first class of transformers that a model is of; of its own class where there is none."""
    kinds = type(model).__mro__
    of_library = (each for each in kinds if each.__module__.partition(".")[0] == "transformers")
    return next(of_library, kinds[0]).__name__


def _within(model: nn.Module) -> Any:
    within: Any = model._orig_mod if "_orig_mod" in model._modules else model
    while hasattr(within, "get_base_model") and (base := within.get_base_model()) is not within:
        within = base
    return within
