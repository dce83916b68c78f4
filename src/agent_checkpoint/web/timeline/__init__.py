"""The timeline: histories, layout, SVG geometry, caches."""
