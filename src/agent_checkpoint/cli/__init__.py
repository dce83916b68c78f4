"""The command `agent-checkpoint`: what people type, and what they see."""
