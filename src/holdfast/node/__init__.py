"""A node without IO: its configuration, and its machines put together. `core` is the stack as a picture."""
