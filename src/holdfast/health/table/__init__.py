"""The path table: every receiver's rows, how they spread, and what clients ask of them."""
