"""The HTTP server: sockets, connections, opening a browser."""
