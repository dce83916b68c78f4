"""The command `agent-checkpoint`: arguments, output, prompts and commands."""
