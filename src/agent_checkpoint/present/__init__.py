"""Presentation code shared by the CLI and the web UI: fork points, graph lanes, states as JSON."""
