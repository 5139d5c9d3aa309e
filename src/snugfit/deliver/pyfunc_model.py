"""The code of a registered model: MLflow copies this file beside the bundle and runs it where the model is loaded.

It is given to MLflow as a file ("models from code"), so no object is pickled; nothing in Snugfit imports it.
"""

from __future__ import annotations

from typing import Any

import mlflow.models
import mlflow.pyfunc
import pandas


class BundleModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]  # MLflow has no types
    """Rows in, one row of predictions for each out, as `snugfit predict` gives them; of series the steps after them, of pixels a PNG."""

    def load_context(self, context: Any) -> None:
        from snugfit.deliver.predictor import load_predictor

        self.predictor = load_predictor(context.artifacts["bundle"])

    def predict(
        self,
        context: Any,  # noqa: ARG002  # MLflow passes it by name
        model_input: pandas.DataFrame,
        params: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> pandas.DataFrame:
        """Predict for the rows of a data frame."""
        rows = [
            {name: _plain(value) for name, value in row.items()} for row in model_input.to_dict("records")
        ]
        return pandas.DataFrame(self.predictor.predict_plain(rows))


def _plain(value: Any) -> Any:
    """Return a cell as JSON has it: MLflow makes arrays of lists to fit the signature, whose entries may be lists again."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if hasattr(value, "tolist") and getattr(value, "ndim", None):
        value = value.tolist()
    return [_plain(each) for each in value] if isinstance(value, list) else value


mlflow.models.set_model(BundleModel())
