"""Messages before they are ordered: the source, the buffers of a replica, and gap recovery."""
