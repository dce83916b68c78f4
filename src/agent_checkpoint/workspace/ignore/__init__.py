"""Ignore rules: the pattern language, the rule files, and which rule wins."""
