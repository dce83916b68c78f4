"""The web page: the timeline of a store, to look at and to act on. Needs the extra `web`."""
