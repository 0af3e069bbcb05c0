"""What went into one replica's scheduler, in a file, and the scheduler alone doing it again."""
