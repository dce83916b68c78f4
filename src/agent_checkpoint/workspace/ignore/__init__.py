"""Ignore rules: the pattern language, the rule files and the precedence of rules."""
