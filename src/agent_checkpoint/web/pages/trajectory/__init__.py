"""Pages of questions about a trajectory: blame, revert, and the runs of bisect and replay."""
