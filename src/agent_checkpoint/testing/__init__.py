"""What backend authors test against."""
