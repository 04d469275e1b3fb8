"""Real nodes: the asyncio driver, and the classes that applications use.

`node` is `holdfast.Node`, built from `parts`; `handles` are the objects used for sending; `driver` runs the core on an
event loop; `worker` runs an application outside it; `control` is the control socket; `collector` tunes the garbage
collector.
"""
