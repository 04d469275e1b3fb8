"""What crosses a cable: frames, the packets that carry them, checksums and seals.

`frames` lists every frame there is. `codec` turns frames into bytes and back; decoding is total: damaged input
becomes `Rejected`, never an exception. `packet` packs frames into packets of a given size and takes them apart.
`seal` encrypts and authenticates datagrams. `blocks` packs many messages into the byte stream of a channel.
"""
