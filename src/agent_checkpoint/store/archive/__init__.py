"""Keys that move between stores: archives, with export and import, and copies."""
