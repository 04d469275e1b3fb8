"""Link health: what every path really carries, in each direction.

`attributes` numbers what can be probed, `signature` decides what one listener is sent of it, `speaker` and `casting`
send it within what `throttle` allows, as `wishes` has it. `liveness` and `lane` judge what arrives, by the odds in
`evidence`; `listener` joins them for one path and talks with its sender, and `state` says what follows. `path` is both
directions of one path, `table` holds everybody's verdicts, `needs` is what traffic asks for, `placement` (with
`verdicts`) what each flow is worth to it, and `monitor` is the unit that runs it all. A path is judged by its receiver;
only then is a direction known.
"""
