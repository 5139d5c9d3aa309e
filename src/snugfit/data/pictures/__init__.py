"""Pictures as data: files, masks and pairs of views."""
