"""Where changed paths come from: inotify, an overlay's upper directory, hard links."""
