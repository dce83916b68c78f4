"""An agent at work: what it is in the middle of, saved as one; and what it did outside."""
