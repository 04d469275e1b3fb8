"""Link health: what every path really carries, in each direction. A path is judged by its receiver.

Measuring: `attributes` numbers what can be probed, `signature` decides what one listener is sent of it, `speaker` and
`casting` send it within what `throttle` allows, as `wishes` has it. `liveness` and `lane` judge what arrives, by the
odds in `evidence`; `listener` joins them for one path and talks with its sender, `state` says what follows. `path` is
both directions of one path; `monitor` is the unit that runs all of it, woken as `wheel` says.
Placing: `needs` is what traffic asks for, `placement` (with `verdicts`) what each flow is worth to it.
Knowing: `table` holds everybody's verdicts, `spread` brings them to everybody along the `neighbourhood`, `classify`
names what is wrong, `alarms` says it once, `history` remembers it, `subscriptions` tells clients; `keeper` is the unit
that joins these, `queries` and `report` answer people.
"""
