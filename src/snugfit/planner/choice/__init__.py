"""The plan that serves the goal best among all that fit: candidates, ladder, search, frontier."""
