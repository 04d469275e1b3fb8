"""Services on the order of a group: locks with fencing tokens and leases, barriers, and zones.

A request is a log entry, so every replica has the same tables, and they survive a change of the leader. `tables` is
what the entries result in, `desk` is the leader's side, `client` is the side of the node that asks.
"""
