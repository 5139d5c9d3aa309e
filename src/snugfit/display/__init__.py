"""The display of a run: on the terminal, in a log, or in a notebook.

It imports nothing by itself: commands take the line of what they do from here, and say it before anything heavier is read.
"""
