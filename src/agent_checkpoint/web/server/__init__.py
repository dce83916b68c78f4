"""The HTTP server of the page: socket, connections, opening a browser."""
