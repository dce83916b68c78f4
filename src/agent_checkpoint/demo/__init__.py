"""A show of a scripted coding agent at work. Imports the public names only, as a user does."""
