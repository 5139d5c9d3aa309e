"""Uses of a trained model: predictions, and registration with MLflow."""
