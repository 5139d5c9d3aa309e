"""Files that rows are read from: formats, paths, shards and the hub."""
