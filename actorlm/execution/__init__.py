"""One rank's work on one step."""
