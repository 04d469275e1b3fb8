"""Administration: moving everything that has an instance on a node to other nodes.

desk         answers other nodes and the control socket; drains a node
evacuation   the node that is left: its plan, carried out step by step
groups       replicas of groups
dialogs      ends of dialogs
hosting      what other nodes can take
values       what nodes say to each other about it

Replicas of objects are moved by the objects unit itself (`holdfast.objects.draining`).
"""
