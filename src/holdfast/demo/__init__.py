"""The demo behind `holdfast demo`: a domain on this machine whose network is broken and repaired.

`orderbook` is the application, `errands` a role, a dialog and an object beside it, `member` one node process, `domain`
all of them, `story` the steps and their checks, `witness` those of the errands.
"""
