"""Dialogs for applications: `node.dialogs` (`edge`), its handles and transactions, and the threads around stores."""
