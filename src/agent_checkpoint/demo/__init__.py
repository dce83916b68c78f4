"""The demo: a scripted coding agent. Imports public names only, as a user program does."""
