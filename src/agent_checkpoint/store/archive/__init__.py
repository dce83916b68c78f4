"""Archives: one key as one file; export and import."""
