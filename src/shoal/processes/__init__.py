"""Worker processes: start them, call them, and replace them when they fail."""
