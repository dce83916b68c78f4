"""The effect ledger: its records, what follows from them, and which sessions share one."""
