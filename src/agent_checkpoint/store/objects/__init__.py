"""Content-addressed objects: their format, compression, and how states are split into them."""
