"""The simulator: the second driver of a node, besides the asyncio driver.

`world` has the clock and the event heap; `host` runs a core, `disk` is its store, `application` its worker. `network`
connects hosts by adapters on subnets, `udp` and `tcp` carry packets over a `path`, and `faults` defines the faults of a
path. `scenario` is a list of faults and crashes as reviewable text, and `nemesis` generates such lists at random.
`checkers` verify the invariants; `trace` and `facts` record what happened. `cluster` builds a domain of production
nodes. One seed determines everything: the same seed gives the same trace, byte for byte.
"""
