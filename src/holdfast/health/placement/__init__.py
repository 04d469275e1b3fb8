"""Placement: what traffic needs of a path, and how well each flow fits."""
