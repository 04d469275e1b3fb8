"""Dialogs: reliable two-party sessions with any combination of assurances, over any store and any transport.

`manager` is the machine: one unit for each store, which owns all dialogs of it. `session` holds the data of one end;
`transfer`, `sending`, `delivery`, `pairing`, `lifecycle`, `ttl`, `faults`, `moving` and `poison` hold the rules by
topic. `outgoing` and `incoming` are the two buffers, `assurances` the receive rules as one table, `resume` the
comparison that begins every link session. `transactions`, `blocks`, `records` and `endings` say what the store holds.
"""
