"""A sweep of random faults in virtual time: checks that each one is detected, diagnosed and routed around.

`draw` chooses a fault of some class with random values, and states the correct diagnosis. `trial` runs a small domain
under it, `watch` records what nodes report and how traffic is affected, and `tally` counts the correct results.
"""
