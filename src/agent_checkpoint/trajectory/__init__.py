"""Questions about a trajectory: the step that broke it, the author of a line, a replay."""
