"""The doctor: what is wrong with a recipe, a model, its data, or a training script of one's own."""
