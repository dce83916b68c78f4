"""Change sources: inotify, the upper directory of an overlay, hard links."""
