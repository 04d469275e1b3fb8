"""Spark jobs that turn telemetry into tables, reports, answers and advice.

A run goes through this package from left to right:

    landings, check, ledger --> ingest: fact store --> work: hourly tables, path fold, views (tables, transforms)
    --> snapshot: one file that names all others --> report, advising

`jobs.run_pipeline` is the whole of it (`intake` is its first step, `making` does the work, `next_snapshot` says what is
kept), `command.app` is the same for a terminal. `storage` is all file access, by URI.
`incident_fold`, `audit` and `question` are pure and need no Spark. `reader` reads published tables without Spark: it
is what the page uses. `models` has the views of localisation, prediction and busy windows; `synth` makes telemetry.
"""
