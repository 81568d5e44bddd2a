"""Measurements of the tree in which they run: `python -m bench.probes NAME JSON` prints a row.

`bench.trees` starts them: in this tree, and in that of an older commit, into which this folder is
copied. A probe therefore takes of the rest of `bench` and of the product only what the oldest
commit that is compared has as well.
"""
