"""Link health: what every path really carries, in each direction.

`signature` decides what is sent when, `listener` judges one flow from what arrives on it, `table` holds everybody's
verdicts, `monitor` is the unit that joins them: it sends heartbeats and probes, spreads rows, and tells links what
their flows are good for. `needs` is what traffic asks for, `placement` what each flow is worth to it. A path is judged
by its receiver; only then is a direction known.
"""
