"""The demo behind `holdfast demo`: a domain on this machine whose network is broken and repaired.

`orderbook` is the application, `member_services` a role, a dialog and an object beside it, `member` one node process,
`domain` all of them, `scenario` the steps and their checks, `service_checks` the checks of the services.
"""
