"""What actors say to each other, one file per receiver."""
