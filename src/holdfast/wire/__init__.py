"""The wire format: frames, packets, checksums and seals.

`frames` contains all frames. `codec` encodes and decodes them; invalid input becomes `Rejected`, never an exception.
`packet` packs frames into packets of a given size and parses packets. `seal` encrypts and authenticates datagrams.
`blocks` packs many messages into the byte stream of a channel.
"""
