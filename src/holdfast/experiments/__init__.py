"""Experiments in simulated networks that are larger than any test bed, with the production code, on Spark executors.

Stability (the figures of the paper, and beyond): `points` defines a point, `topology` and `routes` create networks,
`wires` and `network` move packets (`plain_network` is a simple reference version), and `rounds` drives the protocol
machines of `holdfast.stability` on them. `large` is a compiled copy of their control flow for up to 100 000 nodes.
`bad_links`, `living` and `joining` go beyond the paper: placement, joins, piggybacking. `sets` lists points; `results`,
`claims`, `figures` and `report` turn measurements into verdicts and figures.

`sweep` and `journal` run any list of tasks on a Spark session and record the results. `fault_campaign` uses them for
simulated runs under faults.

Nothing here imports the pipeline: the command line opens the session and calls the audit.
"""
