"""The configuration of a model of timm by its name, as transformers wraps it, from timm itself: without the hub."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from snugfit.errors import MissingExtra, ModelError, nearest

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TIMM = "timm/"
"""Beginning of the names that models of timm have on the hub, such as timm/resnet18.a1_in1k."""


def timm_config(name: str) -> PretrainedConfig:
    """Return the configuration of `timm/ARCHITECTURE` or `timm/ARCHITECTURE.TAG`.

    Raises:
        MissingExtra: timm is not installed.
        ModelError: it has no such model.
    """
    if find_spec("timm") is None:
        raise MissingExtra("timm", "timm")
    import timm
    from transformers import TimmWrapperConfig

    named = name.removeprefix(TIMM)
    architecture = named.partition(".")[0]
    if not timm.is_model(architecture):
        raise ModelError(
            "model", f"timm has no model '{architecture}'", nearest(architecture, timm.list_models())
        )
    known = timm.list_pretrained(f"{architecture}.*")
    if named != architecture and named not in known:
        raise ModelError("model", f"timm has no weights '{named}'", nearest(named, known))
    pretrained = timm.get_pretrained_cfg(named)
    values: dict[str, Any] = {"architecture": architecture}
    if pretrained is not None:
        set_ones = {key: value for key, value in pretrained.to_dict().items() if value is not None}
        values |= {"num_classes": pretrained.num_classes, "pretrained_cfg": set_ones}
    config: PretrainedConfig = TimmWrapperConfig.from_dict(values)
    return config
