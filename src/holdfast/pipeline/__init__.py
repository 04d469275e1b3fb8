"""Spark jobs that turn telemetry into tables, reports and advice.

A run goes through this package from left to right:

    landing/ --> sources: which segments there are  --> quarantine: damaged and unknown ones are set aside
             --> transforms: DataFrame to DataFrame --> publish: whole tables, by an atomic manifest
             --> report: one HTML page for people

`jobs.run_pipeline` is the whole of it, `command.app` is the same for a terminal. `reader.read_table` reads what was
published without Spark: it is what nodes and the page use.
"""
