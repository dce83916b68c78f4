"""Adapters to other libraries, one module each. Each needs the extra of its name."""
