"""Tools: the decorator, their arguments, and calling functions that users wrote."""
