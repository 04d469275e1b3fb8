"""The simulator: the second driver of a node, beside the asyncio one.

`world` has the clock and the one heap of events; `host` runs a core as a machine would, `disk` is its store,
`application` its worker. `network` joins hosts by adapters on subnets, `udp` and `tcp` carry packets over a `path`,
`faults` is the vocabulary of everything that can go wrong on one. `scenario` is a list of faults and crashes as text
that people can review, `nemesis` makes such lists by chance. `checkers` watch the invariants, `trace` and `facts`
write down what happened. `cluster` builds a whole domain of real nodes. One seed decides everything: the same seed
gives the same trace, to the byte.
"""
