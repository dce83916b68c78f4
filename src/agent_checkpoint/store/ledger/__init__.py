"""The effect ledger: its records, the state they add up to, and which sessions share one."""
