"""Synthetic telemetry with known truth, made on Spark so that it can be as large as wanted.

    options   what to make: nodes, adapters, subnets, realms, days, faults, noise, seed
    topology  who hears whom on which adapters, plugged in where
    faults    which risk groups break when, and how; `lives` restarts nodes
    path_facts, load_facts, group_facts, event_facts    the facts of one life of one node, in numpy
    landing   the same segments under the same names as nodes write them
    truth     what really happened, beside the telemetry; `scores` compares results with it
    run       `synth`: one Spark task per life of a node

The same options give the same bytes, on any engine.
"""
