"""Takes single steps out of a directory and keeps the rest."""
