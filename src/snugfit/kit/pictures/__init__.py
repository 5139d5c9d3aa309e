"""Pictures in a batch and on disk, and the convolutions over them: what techniques of vision are made from."""
