"""Links: datagrams and channels between two nodes, over whichever paths work.

`door` finds out whose a new flow is (`handshake`), `link` holds everything that joins this node to one peer: its
flows (`flow`, `wanted`), what leaves it (`outlet`; `lanes` chooses the flow for each kind of traffic, `datagrams` packs
what may be lost) and what comes in (`inlet`), both on `channel`s above all flows,
and how packets are opened and closed (`cipher`, `sessions`). `directory` knows who is in the domain. `ports` is the
border of the layer.
"""
