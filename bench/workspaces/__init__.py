"""Snapshots of directories, undo and forks beside git, restic, borg and cp: targets P1 to P5."""
