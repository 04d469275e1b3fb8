"""A sweep of random faults, in virtual time: is each one found, named and routed around?

`draw` chooses a fault of some class, with values by chance, and states what a correct node must say of it. `trial` runs
a small domain under it and `watch` records what nodes say and how traffic fares. `tally` counts what was right.
"""
