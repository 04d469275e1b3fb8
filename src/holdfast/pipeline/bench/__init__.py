"""`holdfast bench pipeline`: what a run costs, and what it is worth.

`data` makes telemetry, `measures` runs the pipeline over it, `duck` audits the same files with DuckDB, `cluster` starts
a stand-alone cluster from the pip package, `scores` judges localisation and predictions against known truth.
"""
