"""Models on disk: found or fetched, described, and read. Knows no torch."""
