"""What backends on a local file system share: durable writes, locks, free space, fork safety."""
