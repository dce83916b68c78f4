"""The timeline: histories, layout, SVG geometry, and what is cached of them."""
