"""Real nodes: the asyncio driver, and the classes that applications use.

`node` is `holdfast.Node`, made of `parts`; `handles` is what it gives out to send with; `driver` runs the core on an
event loop; `worker` runs an application off it; `control` is the socket that `holdfast status` asks; `collector`
keeps Python's own housekeeping out of the way.
"""
