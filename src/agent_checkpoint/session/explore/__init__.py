"""`explore` and `backtrack`: run variants from one checkpoint and compare the outcomes."""
