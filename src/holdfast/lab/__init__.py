"""`holdfast lab`: a small network on one machine, with faults as in real networks.

`plan` defines a lab and `words` its faults; `topology` creates the namespaces, `rules` turns faults into packet-filter
rules, and `forwarder` (with `relay`) implements those that the kernel cannot. `lab` combines them, `nodes` and `member`
run Holdfast in it, and `commands` are the commands.
"""
