"""The demo behind `holdfast demo`: a domain on this machine whose network is broken and repaired.

`orderbook` is the application, `member` one node process, `domain` all of them, `story` the steps and their checks.
"""
