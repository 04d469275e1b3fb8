"""Storage objects: named content with replicas on several nodes, found, read, changed together, repaired and moved.

`values` and `frames` define what replicas keep and say. `registers` is one replica's side of a decision, `writing` the
proposer's. `reading`, `changing`, `staging` and `fetching` are the steps of every operation; `operations`,
`directories`, `moving`, `loose`, `watching` and `draining` are the operations. `upkeep` repairs and replaces replicas.
`machine` is the unit. All are procedures without IO: see docs/design/objects.md.
"""
