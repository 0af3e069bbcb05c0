"""One file per operation: the plain torch reference, and the launcher that chooses an implementation."""
