"""Link health: what every path really carries, in each direction. A path is judged by its receiver.

Measuring: `signature` decides what is sent when, `listener` judges one flow from what arrives on it, `monitor` is the
unit that joins them and tells links what their flows are good for.
Placing: `needs` is what traffic asks for, `placement` what each flow is worth to it.
Knowing: `table` holds everybody's verdicts, `spread` brings them to everybody along the `neighbourhood`, `classify`
names what is wrong, `alarms` says it once, `history` remembers it, `subscriptions` tells clients; `keeper` is the unit
that joins these, `queries` and `report` answer people.
"""
