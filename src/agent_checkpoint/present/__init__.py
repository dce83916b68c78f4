"""What the command and the page both show: fork points, graph lanes, states as JSON."""
