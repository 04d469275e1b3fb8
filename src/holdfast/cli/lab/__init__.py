"""`holdfast lab`: a small network on one machine, whose cables can be made to fail as real ones do.

`plan` says what a lab consists of, `words` what can be wrong in it; `topology` makes the namespaces, `rules` turns
faults into rules of the kernel's packet filter, `forwarder` (with `relay`) makes those that the kernel cannot. `lab`
joins them, `nodes` and `member` run Holdfast in it, `commands` is what people type.
"""
