"""Libraries beside torch: pandas and scikit-learn, and the trainers of transformers, Lightning and Accelerate."""
