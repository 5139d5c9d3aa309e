"""Tools around a run, one folder each.

`door` takes recipes and Python objects, `measure` does the work on a `Setup`, `result` is what was measured
as plain values, `page` shows it.
"""
