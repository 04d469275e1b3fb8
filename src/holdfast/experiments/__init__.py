"""Experiments at sizes that no test bed has, with the code of the product, over Spark executors.

Stability (the figures of the paper, and beyond): `points` says what a point is, `topology` and `routes` draw networks,
`wires` and `network` move packets (`plain_network` is the same for readers), `rounds` drives the protocol machines of
`holdfast.stability` on them. `large` is a compiled copy of their control flow for up to 100 000 nodes. `bad_links`,
`living` and `joining` go beyond the paper: placement, joins, riding. `sets` lists points, `results`, `claims`,
`figures` and `report` turn measurements into verdicts and pictures.

`sweep` and `journal` run any list of tasks on a Spark session and keep what is done. `fault_campaign` uses them for
simulated runs under faults.

Nothing here imports the pipeline: the command line opens the session and calls the audit.
"""
