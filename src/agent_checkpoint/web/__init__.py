"""The web page: shows the timeline of a store and acts on it. Needs the extra `web`."""
