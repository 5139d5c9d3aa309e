"""Building blocks of every watcher: the recorder, patches of libraries, frames of the script, the private parts of torch."""
