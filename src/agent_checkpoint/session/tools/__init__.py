"""Tools: the `@tool` decorator, call arguments, and calling user functions."""
