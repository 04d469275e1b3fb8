"""Link health: what every path carries, in each direction. A path is judged by its receiver.

`monitor` is the unit that measures; `probing` has the sending and receiving sides of paths. `placement` judges flows by
the needs of traffic. `table` holds the path table and distributes it; `classify` names errors. `stress` tests all
combinations of attributes between nodes.
"""
