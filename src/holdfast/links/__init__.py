"""Links: datagrams and channels between two nodes, over all working paths.

`acceptor` identifies new flows (`handshake`). `link` holds everything between this node and one peer: its flows
(`flow`, `wanted_flows`), the sending side (`sender`; `flow_selection` chooses the flow for each kind of traffic,
`datagrams` packs datagrams), the receiving side (`receiver`), both on `channel`s above all flows, and encryption
(`cipher`, `session_table`). `directory` knows the members of the domain. `ports` is the interface of the layer.
"""
