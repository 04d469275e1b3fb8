"""A node without IO: its configuration, and the assembly of its machines. `core` shows the stack."""
