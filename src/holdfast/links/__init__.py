"""Links: datagrams and channels between two nodes, over whichever paths work.

`door` finds out whose a new flow is, `link` holds everything that joins this node to one peer, `channel` is one
reliable stream above all its flows, `directory` knows who is in the domain. `ports` is the border of the layer.
"""
