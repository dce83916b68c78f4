"""Measurements of the library beside its peers: `make bench`. No part of the package."""
