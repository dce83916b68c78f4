"""Presentation shared by the command and the web page: fork points, graph lanes, states as JSON."""
